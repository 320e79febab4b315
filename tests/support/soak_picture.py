"""The faults of a soak as a CSV file, and its training as a picture."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any


def write_csv(summary: dict[str, Any], path: Path) -> None:
    """Write every fault in order, with its duration and the time from its end until the global step rises again."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["fault", "leg", "kind", "seconds", "recovery_seconds"])
        for number, (kind, leg, seconds, recovery) in enumerate(summary["faults_in_order"], 1):
            writer.writerow([number, leg, kind, seconds, recovery])


def draw(summary: dict[str, Any], path: Path) -> None:
    """Draw mean return and global step against minutes, and below them the recovery times of each kind of fault."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 9), height_ratios=(1, 1.3))
    minutes = [seconds / 60 for seconds, _, _ in summary["returns"]]
    above.plot(minutes, [mean for _, _, mean in summary["returns"]], color="tab:blue", marker=".")
    above.axhline(summary["target"], color="tab:blue", linestyle="--", linewidth=1)
    above.set_xlabel("minutes")
    above.set_ylabel("mean return of 100 episodes", color="tab:blue")
    steps = above.twinx()
    steps.plot(minutes, [step for _, step, _ in summary["returns"]], color="tab:gray", linewidth=1)
    steps.set_ylabel("global step", color="tab:gray")
    above.set_title(f"{summary['faults']} faults, bridge {summary['bridge']}, seed {summary['seed']}")
    kinds = sorted(summary["kinds"], reverse=True)
    for row, kind in enumerate(kinds):
        found = [
            recovery for name, _, _, recovery in summary["faults_in_order"] if name == kind and recovery is not None
        ]
        below.plot([max(0.1, value) for value in found], [row] * len(found), ".", color="tab:red", alpha=0.6)
    below.set_yticks(range(len(kinds)), kinds)
    below.set_xscale("log")
    below.set_xlabel("seconds from the end of a fault until the global step rises")
    below.grid(axis="x", alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
