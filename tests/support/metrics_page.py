"""What docs/metrics.md lists, and what a run's event files hold."""

from __future__ import annotations

import re
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"


def documented() -> set[str]:
    """The names of TensorBoard's metrics."""
    return {name for name in _listed() if not name.startswith(("relaax_", "process_"))}


def _listed() -> set[str]:
    """The names in the first column of the page's tables."""
    found = re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(found) == len(set(found)), "a metric is listed twice"
    return set(found)


def listed_as(tag: str) -> str:
    """The name that the page has for a tag: N for an actor index, one name for all of the environment's own."""
    if tag.startswith("client/") and not tag.startswith("client/latency/"):
        return "client/..."
    return re.sub(r"^(workers/\w+)/\d+$", r"\1/N", tag)


def scalars(directory: Path) -> dict[str, list[float]]:
    """Name to values of all that is in a directory's event files."""
    found: dict[str, list[float]] = {}
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    found.setdefault(value.tag, []).append(value.tensor.float_val[0])
    return found


def documented_for_prometheus(prefix: str) -> set[str]:
    """The names in the tables of the page's part about Prometheus that begin with `prefix`."""
    return {name for name in _listed() if name.startswith(prefix)}
