"""The results of a hostile run as a CSV file, a picture and a table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any


def write_csv(summary: dict[str, Any], path: Path) -> None:
    """Write every sample, with its window and the rate of the honest clients in that window."""
    with path.open("w", newline="", encoding="utf-8") as file:
        names = list(summary["samples"][0])
        writer = csv.writer(file)
        writer.writerow([*names, "hostile", "honest_steps_per_second"])
        for sample in summary["samples"]:
            window = _window(summary, sample["seconds"])
            writer.writerow([*sample.values(), int(window["hostile"]), round(window["rate"], 1)])


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw the rate of the honest clients, the memory of the servers, and the sizes of the manifests."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rates, memory, manifests) = pyplot.subplots(3, 1, figsize=(9, 10))
    for hostile, colour in ((False, "tab:blue"), (True, "tab:red")):
        windows = [window for window in summary["windows"] if window["hostile"] is hostile]
        label = "with hostile clients" if hostile else "alone"
        minutes = [window["start"] / 60 for window in windows]
        rates.plot(minutes, [window["rate"] for window in windows], ".", color=colour, label=label)
    rates.set_ylabel("steps/s of honest clients")
    rates.set_ylim(bottom=0)
    rates.legend()
    rates.set_title(f"{sum(summary['conversations'].values()):,} hostile connections, seed {summary['seed']}")
    minutes = [sample["seconds"] / 60 for sample in summary["samples"]]
    for name in summary["memory"]:
        memory.plot(minutes, [sample[f"{name}_mb"] for sample in summary["samples"]], label=name)
    memory.set_ylabel("own memory, MB")
    memory.set_ylim(bottom=0)
    memory.legend()
    manifests.plot([size / 1000 for size in summary["manifests"]], color="tab:gray")
    manifests.set_ylabel("manifest, kB")
    manifests.set_xlabel("checkpoint (above: minutes)")
    manifests.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def table(summary: dict[str, Any]) -> str:
    """Return a table of the main results."""
    rows: list[tuple[str, object]] = [
        ("hostile connections", ", ".join(f"{name} {count:,}" for name, count in summary["conversations"].items())),
        ("honest clients, steps/s alone", summary["honest_rate_quiet"]),
        ("with hostile clients", summary["honest_rate_hostile"]),
        ("ratio of these two rates", summary["share"]),
        ("updates", f"{summary['updates']:,}"),
        ("longest time without an update", f"{summary['longest_without_update']} s"),
        *((f"memory of the {name}", found) for name, found in summary["memory"].items()),
        ("checkpoints, each read", summary["checkpoints_read"]),
        ("largest manifest", f"{summary['largest_manifest_bytes']:,} bytes"),
        ("slowest status and healthz", f"{summary['slowest_status_seconds']} s"),
    ]
    return "\n".join(f"{name:32}{value}" for name, value in rows)


def _window(summary: dict[str, Any], seconds: float) -> dict[str, Any]:
    begun = [window for window in summary["windows"] if window["start"] <= seconds]
    found: dict[str, Any] = begun[-1] if begun else summary["windows"][0]
    return found
