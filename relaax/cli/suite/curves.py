"""The training curves of a suite: one small plot for each environment, all in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from relaax.cli.plot import PlottedRun, band, coordinates, find_curve, write_csv
from relaax.evaluation import scores

SCALAR = "episode/mean_return_100"
COLUMNS = 5
STYLES = (":", "-.", "--", (0, (1, 4)))


def write_curves(folder: Path, runs: Mapping[str, Sequence[Path]]) -> list[Path]:
    """Write curves.csv and, if matplotlib is installed, curves.png; return the files.

    `runs`: run directories by environment. Directories without a finished episode are left out.
    """
    read = {name: [_read(run, name) for run in of] for name, of in runs.items()}
    drawn = {name: curves for name, of in read.items() if (curves := [curve for curve in of if curve is not None])}
    if not drawn:
        return []
    table = folder / "curves.csv"
    write_csv(table, [curve for curves in drawn.values() for curve in curves], SCALAR)
    try:
        figure = draw_small_multiples(drawn)
    except ModuleNotFoundError:
        return [table]
    picture = folder / "curves.png"
    figure.savefig(picture, dpi=100)
    return [table, picture]


def draw_small_multiples(curves: Mapping[str, Sequence[PlottedRun]]) -> Any:
    """Return a matplotlib Figure: for each environment the curve of each seed, their median, and published scores.

    The published scores are those after 10 million frames. Raises ModuleNotFoundError without matplotlib.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    columns = min(COLUMNS, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure(figsize=(3 * columns, 2.4 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    labels: dict[str, Any] = {}
    for panel, (name, of) in zip(axes.flat, curves.items(), strict=False):
        for run in of:
            labels.setdefault("each seed", panel.plot(*coordinates(run.curve, "steps"), color="C0", alpha=0.4)[0])
        if len(of) > 1:
            xs, median, _, _ = band([coordinates(run.curve, "steps") for run in of])
            labels.setdefault("median", panel.plot(xs, median, color="C0")[0])
        published = scores.after_ten_million_frames().get(scores.game_of(name) or "", {})
        for (agent, score), style in zip(published.items(), STYLES, strict=False):
            line = panel.axhline(score, color="black", linestyle=style, linewidth=1)
            labels.setdefault(f"{agent} after 10 M frames", line)
        panel.set_title(name, fontsize=10)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        panel.grid(alpha=0.3)
    for unused in list(axes.flat)[len(curves) :]:
        unused.remove()
    figure.supxlabel("environment steps")
    figure.supylabel("mean return of 100 episodes")
    figure.legend(labels.values(), labels.keys(), loc="outside upper center", ncols=len(labels), fontsize=9)
    return figure


def _read(run: Path, environment: str) -> PlottedRun | None:
    metrics = run / "metrics"
    curve = find_curve(metrics, SCALAR) if metrics.is_dir() else ()
    return PlottedRun(run.name, curve, environment) if isinstance(curve, list) else None
