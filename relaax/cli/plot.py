"""The command `relaax plot`: the curves of runs as a figure and as a table."""

from __future__ import annotations

import contextlib
import csv
import functools
import glob
import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaax.cli import completion
from relaax.cli.fitting import shortened
from relaax.cli.reporting import exit_with_error
from relaax.configuration import ConfigurationError, nearest
from relaax.console import shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

POINTS = 500
QUARTILES_FROM = 5
CONFIGURATION = "configuration.yaml"
NAME_WIDTH = 60
"""Maximum length of a run's name in a title, which has about 80 characters a line."""
NAMES = {"episode/mean_return_100": "mean return of 100 episodes"}
UNITS = (
    ("reward_per_second$", "reward/s"),
    (r"_per_second(/\d+)?$", "1/s"),
    (r"_ms(/p\d+)?$", "ms"),
    (r"_mb(/\w+)?$", "MB"),
    (r"_percent(/\w+)?$", "% of a core"),
    (r"^(episode|exploit|evaluation)/.*return", "reward"),
    (r"^(episode/|exploit/episode_)length$", "steps"),
    (r"^(episode/|exploit/episode_)seconds$", "s"),
    ("^staleness/", "versions"),
)
"""Patterns of scalar names, and their units, as in docs/metrics.md. The first matching pattern counts."""
_refuse = functools.partial(exit_with_error, "relaax plot")
Curve = list[tuple[int, float, float]]
"""Tuples of global step, seconds since the run's first value, and value."""


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """A run to draw; the runs of a group are drawn as one median and its interval."""

    name: str
    curve: Curve
    group: str | None = None


def plot(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            autocompletion=completion.runs,
            help="Run directories, or folders with TensorBoard files.",
        ),
    ] = None,
    scalar: Annotated[
        str, typer.Option(help="The scalar to draw, by its TensorBoard name.")
    ] = "episode/mean_return_100",
    output: Annotated[Path, typer.Option("--output", "-o", help="The figure: .png, .svg or .pdf.")] = Path("plot.png"),
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the numbers to this file.")] = None,
    x: Annotated[str, typer.Option(help="'steps' (the global step) or 'minutes'.")] = "steps",
    title: Annotated[
        str | None, typer.Option(help="Title of the figure; by default run, environment and algorithm.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="Draw a dashed line at this value.")] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATTERN",
            help="Runs to draw as their median and interval, as in 'LSTM=runs/lstm-*'; repeatable.",
        ),
    ] = None,
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Draw a dotted line at this value, with its name; repeatable."),
    ] = None,
    curves: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Also draw the curves of a CSV file, such as published ones, with the columns run, step, seconds "
            "and the value, as --csv writes them; repeatable.",
        ),
    ] = None,
) -> None:
    """Draw a scalar of runs, or of groups of runs.

    A group is drawn as its median and interval. Lines can also be distinguished without color.
    """
    if x not in ("steps", "minutes"):
        _refuse(f"--x must be 'steps' or 'minutes', not {x!r}")
    heights = dict(_parse_reference(text) for text in reference or [])
    folders = _folders(runs or [], group or [])
    if not folders:
        _refuse("name a run directory, or use --group NAME=PATTERN")
    drawn = [
        PlottedRun(name, read_curve(folder / "metrics" if (folder / "metrics").is_dir() else folder, scalar), of)
        for name, (folder, of) in folders.items()
    ]
    published = [run for file in curves or [] for run in read_csv(file)]
    if x == "minutes" and (timeless := next((run for run in published if math.isnan(run.curve[0][1])), None)):
        _refuse(f"--x minutes: the curve {timeless.name} of --curves has no seconds")
    try:
        if csv_file is not None:
            write_csv(csv_file, drawn, scalar)
        title = default_title(folders) if title is None else title
        figure = draw([*drawn, *published], scalar, x=x, title=title, target=target, references=heights)
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, dpi=120)
    except (OSError, ValueError) as error:
        _refuse(str(error))
    for run in drawn:
        step, seconds, value = run.curve[-1]
        print(f"{run.name}: {scalar} {shown(value)} at step {step:,} after {seconds / 60:.1f} minutes")
    print(f"figure written to {output}")


def _parse_reference(text: str) -> tuple[str, float]:
    """Parse `--reference` into name and value; the name may contain an equals sign."""
    name, equals, value = text.rpartition("=")
    try:
        height = float(value)
    except ValueError:
        height = math.nan
    if not equals or not name or not math.isfinite(height):
        _refuse(f"--reference must be NAME=VALUE, such as 'random agent=22.1', not {text!r}")
    return name, height


def _folders(runs: list[Path], groups: list[str]) -> dict[str, tuple[Path, str | None]]:
    """Return folder and group of each run by name: GROUP/FOLDER, FOLDER, or the path if the name is taken."""
    folders: dict[str, tuple[Path, str | None]] = {}
    for run in runs:
        folders[str(run) if run.name in folders else run.name] = run, None
    for text in groups:
        group, equals, pattern = text.partition("=")
        if not equals or not group or not pattern:
            _refuse(f"--group must be NAME=PATTERN, such as 'LSTM=runs/lstm-*', not {text!r}")
        found = sorted(
            path for path in map(Path, glob.glob(pattern)) if path.is_dir()
        )  # a suite's folder also has files
        if not found:
            _refuse(f"--group {text}: no folder matches the pattern")
        for run in found:
            name = f"{group}/{run.name}"
            folders[f"{group}/{run}" if name in folders else name] = run, group
    return folders


def default_title(folders: Mapping[str, tuple[Path, str | None]]) -> str:
    """Return a title: the name of a single run or group, and the environment and algorithm common to all runs."""
    names = [shortened(one, NAME_WIDTH) for one in dict.fromkeys(of or name for name, (_, of) in folders.items())]
    tasks = [_task(folder) for folder, _ in folders.values()]
    environment, algorithm = (column[0] if len(set(column)) == 1 else "" for column in zip(*tasks, strict=True))
    common = " by ".join(filter(None, (environment, algorithm)))
    parts = [names[0] if len(names) == 1 else "", common]
    return ": ".join(filter(None, parts)) or ", ".join(names)


def _task(folder: Path) -> tuple[str, str]:
    """Return environment and algorithm of a run, as its configuration names them; empty strings if it has none."""
    from relaax.configuration.yaml_file import read_yaml

    for file in (folder / CONFIGURATION, folder.parent / CONFIGURATION):
        with contextlib.suppress(ConfigurationError, KeyError, TypeError, AttributeError):
            document = read_yaml(file)
            run, algorithm = document["relaax-run"], Path(document["algorithm"]["path"]).stem
            return str(run.get("name") or Path(run["environment"]).stem), algorithm
    return "", ""


def unit_of(scalar: str) -> str:
    """Return the unit of a scalar by its name; an empty string if it has none."""
    return next((unit for pattern, unit in UNITS if re.search(pattern, scalar)), "")


def read_curve(folder: Path, scalar: str) -> Curve:
    """Return the curve of one scalar. Exit the command with a message if the scalar does not exist."""
    if not folder.is_dir():
        _refuse(f"cannot plot {folder}: the folder does not exist")
    found = find_curve(folder, scalar)
    if not isinstance(found, list):
        near = nearest(scalar, found)
        hint = f"; the nearest is {near}" if near else ""
        _refuse(f"{folder} has no scalar {scalar}{hint}; it has {', '.join(found) or 'none'}")
    return found


def find_curve(folder: Path, scalar: str) -> Curve | tuple[str, ...]:
    """Return the curve of one scalar. If the folder does not contain it, return the names of its scalars."""
    from relaax.metrics.writer import do_without_tensorflow

    do_without_tensorflow()
    from tensorboard.backend.event_processing import event_accumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns about each start of a training
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={event_accumulator.SCALARS: 0})
    events.Reload()
    names = sorted(events.Tags()["scalars"])
    if scalar not in names:
        below = folder / "evaluation"
        found = find_curve(below, scalar) if below.is_dir() else ()
        return found if isinstance(found, list) else (*names, *found)
    values = drop_lost_events(events.Scalars(scalar))
    start = values[0].wall_time
    return [(event.step, event.wall_time - start, event.value) for event in values]


def drop_lost_events(events: Iterable[Any]) -> list[Any]:
    """Drop events of training that a crash undid: a later event has the same or a lower step."""
    kept: list[Any] = []
    for event in events:
        while kept and kept[-1].step >= event.step:
            kept.pop()
        kept.append(event)
    return kept


def write_csv(path: Path, runs: Sequence[PlottedRun], scalar: str) -> None:
    """Write the curves as a table with the columns run, step, seconds and `scalar`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["run", "step", "seconds", scalar])
        for run in runs:
            writer.writerows((run.name, step, f"{seconds:.1f}", f"{value:.4f}") for step, seconds, value in run.curve)


def read_csv(path: Path) -> list[PlottedRun]:
    """Return the curves of a file with the columns that `write_csv` writes. Missing seconds are NaN.

    The last column may have any name. Exit the command with a message if the file has another format.
    """
    curves: dict[str, Curve] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            if (header := next(rows, []))[:3] != ["run", "step", "seconds"] or len(header) != 4:
                _refuse(f"{path}: the first line must be run,step,seconds,VALUE, not {','.join(header)!r}")
            for row in rows:
                name, step, seconds, value = row
                curves.setdefault(name, []).append((int(step), float(seconds or "nan"), float(value)))
    except OSError as error:
        _refuse(f"{path}: {error.strerror}")
    except ValueError:
        _refuse(f"{path}, line {rows.line_num}: must have a name and three numbers")
    if not curves:
        _refuse(f"{path} has no curves")
    return [PlottedRun(name, curve) for name, curve in curves.items()]


def draw(
    runs: list[PlottedRun],
    scalar: str,
    *,
    x: str = "steps",
    title: str | None = None,
    target: float | None = None,
    references: dict[str, float] | None = None,
) -> Any:
    """Return the figure, a matplotlib Figure. Raises ValueError if matplotlib cannot draw it."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter
    except ModuleNotFoundError:
        _refuse("matplotlib is not installed; pip install 'relaax[plot]'")
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.set_xmargin(0.02)
    bundles: dict[str, list[PlottedRun]] = {}
    for run in runs:
        bundles.setdefault(run.group or run.name, []).append(run)
    for number, (name, bundle) in enumerate(bundles.items()):
        lines = [coordinates(run.curve, x) for run in bundle]
        colour = f"C{number % 10}"
        if len(bundle) == 1:
            axes.plot(*lines[0], label=name, color=colour, **_line_style(number, lines[0][0]))
            continue
        xs, median, low, high = band(lines)
        interval = "quartiles" if len(bundle) >= QUARTILES_FROM else "range"
        label = f"{name} (median and {interval} of {len(bundle)})"
        axes.plot(xs, median, label=label, color=colour, **_line_style(number, xs))
        axes.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0.5)
    if target is not None:
        axes.axhline(target, linestyle="--", color="grey", linewidth=1, label=f"target ({target:g})")
    for name, height in (references or {}).items():
        axes.axhline(height, linestyle=":", color="black", linewidth=1)
        words = f"{name} ({height:g})"  # at its line: in a legend all references would look alike
        axes.annotate(words, (1, height), (-2, 2), axes.get_yaxis_transform(), "offset points", ha="right", fontsize=8)
    if x == "steps":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 20k and 1.5M: long numbers would touch
    axes.set_xlabel("environment steps" if x == "steps" else "time [minutes]")
    axes.set_ylabel(f"{NAMES.get(scalar, scalar)} [{unit}]" if (unit := unit_of(scalar)) else scalar)
    axes.grid(alpha=0.3)
    if title:
        axes.set_title(title, wrap=True)
    if len(bundles) > 1 or any(run.group for run in runs) or target is not None or references:
        axes.legend()
    return figure


def band(lines: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, Array, Array]:
    """Return x, median, lower and upper bound of several curves, in the range of x that all curves cover.

    Curves are interpolated linearly. The bounds are the quartiles; for fewer than five curves, the minimum and the
    maximum. Raises ValueError if no x is covered by all curves.
    """
    start, end = max(xs[0] for xs, _ in lines), min(xs[-1] for xs, _ in lines)
    if start > end:
        raise ValueError(f"runs of a group do not overlap: one begins at {start:g}, another ends at {end:g}")
    import numpy as np

    xs = np.linspace(start, end, POINTS)
    values = np.stack([np.interp(xs, *line) for line in lines])
    outer = (25, 75) if len(lines) >= QUARTILES_FROM else (0, 100)
    low, median, high = np.percentile(values, (outer[0], 50, outer[1]), axis=0)
    return xs, median, low, high


def coordinates(curve: Curve, x: str) -> tuple[Array, Array]:
    """Return the points of a curve: `x` ("steps", or "minutes") and value, float64 [points] each."""
    import numpy as np

    steps, seconds, values = (np.asarray(column, np.float64) for column in zip(*curve, strict=True))
    return steps if x == "steps" else seconds / 60, values


def _line_style(number: int, xs: Array) -> dict[str, Any]:
    """Return a line style that can be distinguished from the others without color, and shows a single point."""
    style = ("-", "--", "-.", (0, (5, 1, 1, 1, 1, 1)))[number % 4]
    marker = ("", "o", "s", "^", "D", "v", "x")[number // 4 % 7] or ("o" if xs[0] == xs[-1] else "")
    return {"linestyle": style, "marker": marker, "markevery": 0.1, "markersize": 4, "linewidth": 1.5}
