"""The metrics that docs/metrics.md lists, and the metrics in the event files of a run."""

from __future__ import annotations

import re
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def documented() -> set[str]:
    """Return the names of the documented TensorBoard metrics."""
    return {name for name in _listed() if not name.startswith(("relaax_", "process_"))}


def _listed() -> set[str]:
    """Return the names in the first column of the page's tables."""
    found = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == len(set(found)), "a metric is listed twice"
    return set(found)


def listed_as(tag: str) -> str:
    """Return the name of a tag on the page: N for an actor index, and one name for all metrics of environments."""
    if tag.startswith("client/") and not tag.startswith("client/latency/"):
        return "client/..."
    return re.sub(r"^(workers/\w+)/\d+$", r"\1/N", tag)


def scalars(directory: Path) -> dict[str, list[float]]:
    """Return the values in a directory's event files, by tag."""
    found: dict[str, list[float]] = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found.setdefault(value.tag, []).append(value.tensor.float_val[0])
    return found


def documented_for_prometheus(prefix: str) -> set[str]:
    """Return the names of the documented Prometheus metrics that begin with `prefix`."""
    return {name for name in _listed() if name.startswith(prefix)}
