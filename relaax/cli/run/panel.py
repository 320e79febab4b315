"""The display of a run's progress."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relaax.cli.fitting import shortened
from relaax.cli.reporting import resilient
from relaax.cli.run.plan import Plan
from relaax.cli.run.progress import Progress, ReplayProgress
from relaax.console import shown
from relaax.files import write_whole
from relaax.plain_console import PlainConsole, visible

LINE_SECONDS = 10.0
FILE_SECONDS = 1.0
FILE_WIDTH = 80
"""Width of the panel in a file, for terminals of unknown width on other machines."""
PANEL_EDGES = 4
"""Columns of a terminal that the panel's border and its padding take."""
MAX_COLUMNS = 4
UNLIMITED_WIDTH = 1000
"""A width at which no cell of a table is cut off."""
VALUE_WIDTH = 12
"""Minimum width of a value, so that columns do not move when numbers grow."""
STEP_SECONDS = 2.0
"""Without a terminal, a startup step that takes longer is reported."""


class ProgressView:
    """A live panel on a terminal, a line every LINE_SECONDS elsewhere, no output if `enabled` is false."""

    def __init__(self, plan: Plan, enabled: bool, file: Path | None = None) -> None:
        """`file`: a file that also receives the panel, for terminals on other machines."""
        self._plan = plan
        self._file = file
        self._file_at = 0.0
        self._console = PlainConsole(file=resilient(sys.stdout))
        self._enabled = enabled
        self._live = (
            Live(console=self._console, refresh_per_second=5) if enabled and self._console.is_terminal else None
        )
        self._line_at = 0.0
        self._step_timer: threading.Timer | None = None
        self._checkpoint_error = ""
        self._not_finite = 0  # number of gradients in the last report

    def __enter__(self) -> ProgressView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._cancel_step_timer()
        if self._live:
            self._live.stop()

    def print_line(self, sentence: str) -> None:
        """Print a permanent line."""
        if self._enabled:
            self._console.print(sentence, highlight=False, soft_wrap=True)

    def step(self, what: str) -> None:
        """Show the current activity until the next one or the first numbers."""
        self._cancel_step_timer()
        if self._live:
            self._live.update(Text(f"{what} ..."))
        elif self._enabled:
            self._step_timer = threading.Timer(STEP_SECONDS, self.print_line, [f"still {what}"])
            self._step_timer.daemon = True
            self._step_timer.start()

    def _cancel_step_timer(self) -> None:
        if self._step_timer is not None:
            self._step_timer.cancel()

    def show(self, progress: Progress, replay: ReplayProgress | None = None) -> None:
        """Show the newest numbers after the first connection. `replay`: numbers of replay memory, if there is one."""
        if not progress.seconds:
            return
        self._cancel_step_timer()
        if self._live:
            self._live.update(ProgressPanel(self._plan, progress, replay))
            return
        if self._file is not None and time.monotonic() - self._file_at > FILE_SECONDS:
            self._file_at = time.monotonic()
            drawn = PlainConsole(force_terminal=True, width=FILE_WIDTH)
            with drawn.capture() as text:
                drawn.print(ProgressPanel(self._plan, progress, replay))
            with contextlib.suppress(OSError):  # training continues without the file
                write_whole(self._file, [text.get().encode()])
        problem = progress.checkpoint_error.rpartition(": ")[2]  # the rest names the checkpoint, which changes
        if problem != self._checkpoint_error:
            self._checkpoint_error = problem
            self.print_line(
                _late_checkpoint(progress) if problem else f"checkpoints are written again: {_checkpoint(progress)}"
            )
        if progress.discarded_not_finite > 2 * self._not_finite:  # report only if the number has doubled
            self._not_finite = progress.discarded_not_finite
            self.print_line(_not_finite(progress))
        if self._enabled and time.monotonic() - self._line_at > LINE_SECONDS:
            self._line_at = time.monotonic()
            self.print_line(_line(progress, replay))


def _number(value: float | None, text: Callable[[float], str] = shown) -> str:
    return "–" if value is None else text(value)


def _line(progress: Progress, replay: ReplayProgress | None = None) -> str:
    memory = ""
    if replay is not None:
        memory = f"  {replay.size:,} items, {_number(replay.samples_per_insert)} samples an insert"
    return (
        f"{progress.seconds:6.0f} s  {progress.global_step:,} steps  {progress.steps_per_second:,.0f} steps/s  "
        f"{progress.episodes:,} episodes  mean return {_number(progress.mean_return_100)}  "
        + (f"lesson {_lesson(progress)}  " if progress.lessons else "")
        + (f"against opponents {_opponents(progress)}  " if progress.elo is not None else "")
        + f"{_workers(progress)} workers"
        + (f"  {progress.learners} learner{'s' * (progress.learners > 1)}" if progress.learners else "")
        + memory
    )


def _workers(progress: Progress) -> str:
    """Return the number of workers that train and, if there are any, the number of workers that only act."""
    more = f" + {progress.exploit_workers:,} exploit" if progress.exploit_workers else ""
    return f"{progress.workers:,}{more}"


def _lesson(progress: Progress) -> str:
    name = f" ({progress.lesson_name})" if progress.lesson_name else ""
    return f"{progress.lesson} of {progress.lessons}{name}, mean return {_number(progress.lesson_return)}"


def _opponents(progress: Progress) -> str:
    return f"{_number(progress.opponent_win_rate, '{:.0%} won'.format)}, Elo {_number(progress.elo, '{:,.0f}'.format)}"


def _checkpoint_parts(progress: Progress) -> tuple[str, str]:
    """Return the step and the age of the last checkpoint."""
    if progress.checkpoint_global_step is None or progress.checkpoint_time is None:
        return "–", "–"
    age = max(0.0, time.time() - progress.checkpoint_time)
    return f"step {progress.checkpoint_global_step:,}", f"{_duration(age)} ago"


def _checkpoint(progress: Progress) -> str:
    return ", ".join(dict.fromkeys(_checkpoint_parts(progress)))


def _late_checkpoint(progress: Progress) -> str:
    last = "no checkpoint yet" if progress.checkpoint_global_step is None else f"the last: {_checkpoint(progress)}"
    return f"the checkpoint is late ({last}), training continues: {progress.checkpoint_error}"


def _not_finite(progress: Progress) -> str:
    return (
        f"{progress.discarded_not_finite:,} gradients held NaN or infinite numbers and were discarded; the parameter "
        "server's log names the workers"
    )


def step_limit(progress: Progress, max_steps: int | None) -> int | None:
    """Return the last step of the run: the lower of its own limit and the training's; None while unknown."""
    return min((limit for limit in (max_steps, progress.max_global_step) if limit), default=None)


def time_left(progress: Progress, max_steps: int | None, max_time: float | None = None) -> float | None:
    """Return seconds until the run's nearest limit, for steps at the current speed; None while unknown."""
    end = step_limit(progress, max_steps)
    pace = progress.steps_per_second
    steps = max(0, end - progress.global_step) / pace if end and pace > 0 else None
    time = None if max_time is None else max(0.0, max_time - progress.seconds)
    return min((left for left in (steps, time) if left is not None), default=None)


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


def _replay_figures(replay: ReplayProgress) -> list[tuple[str, str]]:
    return [
        ("inserts/s", _number(replay.inserts_per_second)),
        ("samples/s", _number(replay.samples_per_second)),
        ("samples/insert", _number(replay.samples_per_insert)),
        ("items in memory", f"{replay.size:,}"),
        ("capacity", f"{replay.capacity:,}"),
        ("age of samples", f"{replay.mean_age:,.0f} items"),
        ("updates/s", _number(replay.updates_per_second)),
    ]


def _figures(plan: Plan, progress: Progress, replay: ReplayProgress | None) -> list[tuple[str, str]]:
    """Return names and values, the most important first: a low terminal shows only the first lines."""
    target = plan.target_return
    left = time_left(progress, plan.run.max_steps, plan.run.max_time)
    mean = _number(progress.mean_return_100) + (f" of {target:g}" if target is not None else "")
    step, age = _checkpoint_parts(progress)
    versions, milliseconds = "{:,.1f} versions".format, "{:.3g} ms".format
    figures = [
        ("steps", f"{progress.global_step:,}"),
        ("steps/s", f"{progress.steps_per_second:,.0f}"),
        ("episodes", f"{progress.episodes:,}"),
        ("mean return", mean),
        ("best mean return", _number(progress.best_mean_return_100)),
        *([("lesson", _lesson(progress))] if progress.lessons else []),
        *([("opponents", _opponents(progress))] if progress.elo is not None else []),
        ("time", _duration(progress.seconds)),
        ("left, at most", _duration(left)),
        ("workers", _workers(progress)),
        *([("learners", f"{progress.learners:,}")] if progress.learners else []),
        ("updates", f"{progress.updates:,}"),
        ("learning rate", f"{progress.learning_rate:.2e}"),
        ("staleness", _number(progress.mean_staleness, versions)),
        *([("actor staleness", _number(progress.mean_actor_staleness, versions))] if progress.learners else []),
    ]
    if progress.discarded:
        figures.append(("discarded", f"{progress.discarded:,}"))
        figures += [(f"  {reason.replace('_', ' ')}", f"{count:,}") for reason, count in progress.discarded_for.items()]
    return [
        *figures,
        *([] if replay is None else _replay_figures(replay)),
        ("answer to a step", _number(progress.act_ms_p50, milliseconds)),
        ("99 in 100 within", _number(progress.act_ms_p99, milliseconds)),
        ("last checkpoint", step),
        ("written", age),
    ]


def _problems(progress: Progress, replay: ReplayProgress | None) -> list[str]:
    problems = [_late_checkpoint(progress)] if progress.checkpoint_error else []
    if progress.discarded_not_finite:
        problems.append(_not_finite(progress))
    if replay is not None and replay.answering < replay.shards:
        problems.append(f"{replay.answering} of {replay.shards} replay servers answer")
    return problems


def _title(plan: Plan, room: int) -> str:
    """Return the plan's title; if it is too long, its longest names are shortened."""
    names = [visible(plan.name), visible(plan.environment_name), visible(plan.algorithm.stem)]
    while cell_len(title := "{}: {} by {}".format(*names)) > room and len(longest := max(names, key=len)) > 1:
        names[names.index(longest)] = shortened(longest, cell_len(longest) - 1)
    return shortened(title, room)


class ProgressPanel:
    """The panel of a run: as many columns of figures as fit the terminal, read from top to bottom.

    Figures are never cut off.
    """

    def __init__(self, plan: Plan, progress: Progress, replay: ReplayProgress | None = None) -> None:
        self._plan = plan
        self._figures = _figures(plan, progress, replay)
        self._problems = _problems(progress, replay)
        self._step = progress.global_step
        self._end = step_limit(progress, plan.run.max_steps)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the panel for the width of `options`."""
        room = options.max_width - PANEL_EDGES
        whole = options.update(width=UNLIMITED_WIDTH)
        tables = [_columns(self._figures, count) for count in range(MAX_COLUMNS, 0, -1)]
        widths = [console.measure(table, options=whole).maximum for table in tables]
        chosen = next((index for index, width in enumerate(widths) if width <= room), -1)
        table, width = tables[chosen], min(room, widths[chosen])
        outer = Table.grid()
        outer.add_column(overflow="fold")
        outer.add_row(table)
        for problem in self._problems:
            outer.add_row(Text(problem, style="red"))
        if self._end:
            outer.add_row(ProgressBar(total=self._end, completed=min(self._step, self._end), width=max(1, width)))
        yield Panel(outer, title=Text(_title(self._plan, room - 2)), expand=False, padding=(0, 1))


def _columns(figures: Sequence[tuple[str, str]], count: int) -> Table:
    """Return the figures in `count` columns of equal height, each of names and values."""
    height = -(-len(figures) // count)
    table = Table.grid(padding=(0, 2))
    for _ in range(count):
        table.add_column(style="dim", overflow="ellipsis")
        table.add_column(justify="right", overflow="fold", min_width=VALUE_WIDTH if count > 1 else None)
    for row in range(height):
        table.add_row(*(cell for figure in figures[row::height] for cell in figure))
    return table
