"""The command `relaax plot`: the curves of runs as a picture and as a table."""

from __future__ import annotations

import csv
import sys
import types
from pathlib import Path
from typing import Annotated, Any

import typer

Curve = list[tuple[int, float, float]]
"""Global step, seconds since the run's first value, value."""


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders with TensorBoard files.")],
    scalar: Annotated[str, typer.Option(help="What to draw, by its name in TensorBoard.")] = "episode/mean_return_100",
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: .png, .svg or .pdf.")] = Path("plot.png"),
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the numbers here as well.")] = None,
    x: Annotated[str, typer.Option(help="'steps' (the global step) or 'minutes'.")] = "steps",
    title: Annotated[str | None, typer.Option(help="Above the picture.")] = None,
    target: Annotated[float | None, typer.Option(help="A dashed line at this height.")] = None,
) -> None:
    """Draw one scalar of one or more runs."""
    if x not in ("steps", "minutes"):
        _refuse(f"--x {x}: 'steps' or 'minutes' is expected")
    curves = {}
    for run in runs:
        curves[run.name] = read_curve(run / "metrics" if (run / "metrics").is_dir() else run, scalar)
    try:
        if csv_file is not None:
            _write_csv(csv_file, curves, scalar)
        _draw(curves, scalar, output, x, title, target)
    except (OSError, ValueError) as error:
        _refuse(str(error))
    for name, curve in curves.items():
        step, seconds, value = curve[-1]
        print(f"{name}: {scalar} {value:.1f} at step {step:,} after {seconds / 60:.1f} minutes")
    print(f"drawn into {output}")


def _refuse(sentence: str) -> None:
    print(f"relaax plot: {sentence}", file=sys.stderr)
    raise typer.Exit(2)


def read_curve(folder: Path, scalar: str) -> Curve:
    """The values of one scalar, in order of the global step. Ends the command with a sentence where there are none."""
    # The presence of this module is TensorBoard's own switch for doing without TensorFlow, which takes seconds to load.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing import event_accumulator

    if not folder.is_dir():
        _refuse(f"{folder}: no such folder")
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    events.Reload()
    names = sorted(events.Tags()["scalars"])
    if scalar not in names:
        _refuse(f"{folder} has no scalar {scalar}; it has {', '.join(names) or 'none'}")
    values = events.Scalars(scalar)
    start = values[0].wall_time
    return [(event.step, event.wall_time - start, event.value) for event in values]


def _write_csv(path: Path, curves: dict[str, Curve], scalar: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", "step", "seconds", scalar])
        for name, curve in curves.items():
            writer.writerows((name, step, f"{seconds:.1f}", f"{value:.4f}") for step, seconds, value in curve)


def _draw(curves: dict[str, Curve], scalar: str, output: Path, x: str, title: str | None, target: float | None) -> None:
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        _refuse("matplotlib is not installed; pip install 'relaax[plot]'")
    mpl.use("Agg")
    from matplotlib import pyplot

    figure: Any
    axes: Any
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, curve in curves.items():
        steps, seconds, values = zip(*curve, strict=True)
        axes.plot(steps if x == "steps" else [second / 60 for second in seconds], values, label=name)
    if target is not None:
        axes.axhline(target, linestyle="--", color="grey", linewidth=1)
    axes.set_xlabel("environment steps" if x == "steps" else "minutes")
    axes.set_ylabel(scalar)
    axes.grid(alpha=0.3)
    if title:
        axes.set_title(title)
    if len(curves) > 1:
        axes.legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120)
    pyplot.close(figure)
