"""The progress panel of `relaax run`, and the lines that it prints without a terminal."""

from __future__ import annotations

import dataclasses
import io
import re
import time

import pytest
from rich.cells import cell_len

from relaax.cli.run import panel
from relaax.cli.run.panel import ProgressPanel, ProgressView, step_limit, time_left
from relaax.cli.run.plan import Plan, make_plan
from relaax.cli.run.progress import Progress, ReplayProgress
from relaax.plain_console import PlainConsole
from support.processes import Processes, wait_until

NOW = 1_700_000_000.0
LATE = "cannot write checkpoints/00000003-12000-f1/shard-0.safetensors: No space left on device"
PROGRESS = Progress(
    global_step=12_000,
    updates=600,
    episodes=321,
    mean_return_100=98.25,
    best_mean_return_100=101.5,
    workers=4,
    mean_staleness=2.5,
    learning_rate=6.5e-4,
    checkpoint_global_step=10_000,
    checkpoint_time=NOW - 130,
    max_global_step=100_000,
    act_ms_p50=0.4321,
    act_ms_p99=12.5,
    seconds=12.0,
    steps_at_start=6_000,
)


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


def rendered(
    progress: Progress, replay: ReplayProgress | None = None, width: int = 100, plan: Plan | None = None
) -> str:
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=False)
    console.print(ProgressPanel(plan or make_plan("da3c_gym_cartpole", []), progress, replay))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_panel_shows_all_figures_of_progress() -> None:
    text = rendered(PROGRESS)
    for words in (
        "12,000",
        "500",
        "321",
        "98.2 of 475",
        "101.5",
        "600",
        "2.5",
        "0.432 ms",
        "12.5 ms",
        "0:00:12",
        "0:02:56",
        "step 10,000",
        "0:02:10 ago",
    ):
        assert words in text, words
    assert "da3c_gym_cartpole: CartPole-v1 by da3c" in text


def test_discarded_gradients_are_shown_by_reason() -> None:
    assert "discarded" not in rendered(PROGRESS)
    progress = dataclasses.replace(
        PROGRESS, discarded=2_015, discarded_stale=2_000, discarded_not_finite=1, discarded_loss=14
    )
    text = rendered(progress)
    for row in (r"discarded +2,015", r"stale +2,000", r"not finite +1", r"loss +14"):
        assert re.search(rf"\b{row}\b", text), row


NOT_FINITE = "3 gradients held NaN or infinite numbers and were discarded; the parameter server's log names the workers"


def test_panel_reports_gradients_that_are_not_finite() -> None:
    text = " ".join(rendered(dataclasses.replace(PROGRESS, discarded_not_finite=3)).replace("│", "").split())
    assert NOT_FINITE in text


def test_gradients_not_finite_are_reported_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(make_plan("da3c_gym_cartpole", []), enabled=True) as view:
        for count in (0, 3, 3, 4, 7, 8):
            view.show(dataclasses.replace(PROGRESS, discarded_not_finite=count))
    printed = [line for line in capsys.readouterr().out.splitlines() if "gradients held" in line]
    assert printed == [NOT_FINITE, NOT_FINITE.replace("3", "7", 1)]


def test_panel_is_shown_before_any_progress() -> None:
    text = rendered(Progress())
    assert "–" in text
    assert "nan" not in text.lower()


def test_speed_counts_only_steps_since_the_resume() -> None:
    assert PROGRESS.steps_per_second == 500
    assert Progress(global_step=5).steps_per_second == 0


@pytest.mark.parametrize(("max_steps", "seconds"), [(None, 176), (13_000, 2), (12_000, 0), (500, 0)])
def test_time_left_is_until_the_nearer_limit(max_steps: int | None, seconds: float) -> None:
    assert time_left(PROGRESS, max_steps) == seconds


def test_time_left_ends_at_the_time_limit_if_nearer() -> None:
    seconds = PROGRESS.seconds
    assert time_left(PROGRESS, None, seconds + 90) == 90
    assert time_left(PROGRESS, None, seconds + 1000) == 176
    assert time_left(PROGRESS, None, seconds - 1) == 0
    assert time_left(Progress(), None, 90) == 90


def test_nearer_limit_ends_the_run() -> None:
    assert step_limit(PROGRESS, 13_000) == 13_000
    assert step_limit(PROGRESS, 10**9) == step_limit(PROGRESS, None) == 100_000
    assert step_limit(Progress(), None) is None


def test_disabled_progress_has_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan("da3c_gym_cartpole", [])
    with ProgressView(plan, enabled=False) as view:
        view.print_line("hello")
        view.show(PROGRESS)
    assert capsys.readouterr().out == ""
    with ProgressView(plan, enabled=True) as view:
        view.print_line("hello")
        view.show(PROGRESS)
        view.show(PROGRESS)
    out = capsys.readouterr().out
    assert out.startswith("hello\n")
    assert out.count("12,000 steps") == 1, "without a terminal, a line is printed only now and then"


def test_slow_start_step_is_reported_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel, "STEP_SECONDS", 0.01)
    printed = ""

    def is_reported() -> bool:
        nonlocal printed
        printed += capsys.readouterr().out
        return "\n" in printed

    with ProgressView(make_plan("da3c_gym_cartpole", []), enabled=True) as view:
        view.step("starting the parameter server")
        wait_until(is_reported, "the step is reported")
        view.show(Progress())
        view.show(PROGRESS)
    assert printed == "still starting the parameter server\n"
    (line,) = capsys.readouterr().out.splitlines()
    assert "12,000 steps" in line, "no figures were shown before the first connection"


def test_steps_of_a_quick_start_are_not_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "STEP_SECONDS", 600)
    with ProgressView(make_plan("da3c_gym_cartpole", []), enabled=True) as view:
        view.step("starting the parameter server")
        view.step("starting the RLX server")
        view.show(PROGRESS)
        assert view._step_timer is not None
        view._step_timer.join(10)
        assert not view._step_timer.is_alive(), "the timer has been cancelled"
    assert "starting" not in capsys.readouterr().out


def test_terminal_shows_each_start_step_in_place_of_the_panel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with ProgressView(make_plan("da3c_gym_cartpole", []), enabled=True) as view:
        view.step("starting the RLX server")
        view.show(Progress())
    assert "starting the RLX server ..." in capsys.readouterr().out
    with ProgressView(make_plan("da3c_gym_cartpole", []), enabled=True) as view:
        view.step("starting the RLX server")
        view.show(PROGRESS)
    shown = capsys.readouterr().out
    assert "12,000" in shown


def test_returns_below_one_keep_three_digits() -> None:
    small = dataclasses.replace(PROGRESS, mean_return_100=0.744, best_mean_return_100=0.0133)
    assert "0.744 of 475" in rendered(small)
    assert "0.0133" in rendered(small)
    assert "mean return 0.744" in panel._line(small)


def test_panel_reports_a_late_checkpoint() -> None:
    assert "late" not in rendered(PROGRESS)
    text = " ".join(rendered(dataclasses.replace(PROGRESS, checkpoint_error=LATE)).replace("│", "").split())
    assert "the checkpoint is late (the last: step 10,000, 0:02:10 ago)" in text
    assert f"training continues: {LATE}" in text
    none_yet = dataclasses.replace(PROGRESS, checkpoint_error=LATE, checkpoint_global_step=None)
    assert "late (no checkpoint yet)" in rendered(none_yet)


def test_late_checkpoint_is_reported_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressView(make_plan("da3c_gym_cartpole", []), enabled=True) as view:
        for error in ("", LATE, LATE.replace("12000", "15000"), LATE.replace("No space left on device", "Broken"), ""):
            view.show(dataclasses.replace(PROGRESS, checkpoint_error=error))
    printed = [line for line in capsys.readouterr().out.splitlines() if "checkpoint" in line]
    assert [line.partition(" (")[0] for line in printed[:2]] == ["the checkpoint is late"] * 2
    assert printed[1].endswith(": Broken")
    assert printed[2:] == ["checkpoints are written again: step 10,000, 0:02:10 ago"]


@pytest.mark.parametrize("terminal", [True, False])
def test_closed_output_does_not_end_the_program(processes: Processes, terminal: bool) -> None:
    """The output is a pipe, as with `| head -1`, or a terminal, and its reader closes it."""
    command = processes.start_python(
        f"""
import os, pty, sys
reading, writing = pty.openpty() if {terminal} else os.pipe()
os.dup2(writing, 1)
os.close(writing)
from relaax.cli.run.panel import ProgressView
from relaax.cli.run.plan import Plan, make_plan
from relaax.cli.run.progress import Progress
with ProgressView(make_plan("da3c_gym_cartpole", []), True) as view:
    assert (view._live is not None) == {terminal}
    view.print_line("hello")
    os.close(reading)
    for steps in range(100):
        view.print_line("more output")
        view.show(Progress(global_step=steps, seconds=1.0))
view.print_line("closed")
""",
        env={"TERM": "xterm"},
    )
    assert command.wait(60) == 0, command.report()
    assert command.stderr == ""


def test_learners_and_workers_are_counted_separately() -> None:
    assert "learners" not in rendered(PROGRESS)
    text = rendered(dataclasses.replace(PROGRESS, learners=3, discarded=2, discarded_stale=2))
    assert re.search(r"learners +3\b", text)
    assert re.search(r"workers +4 ", text)
    assert "discarded" in text


REPLAY = ReplayProgress(
    shards=2,
    answering=2,
    size=25_000,
    capacity=50_000,
    mean_age=12_345.6,
    inserts_per_second=400.0,
    samples_per_second=3_100.0,
    updates_per_second=96.875,
)


def test_panel_shows_rates_of_replay_memory() -> None:
    assert "inserts/s" not in rendered(PROGRESS)
    text = rendered(dataclasses.replace(PROGRESS, learners=2, mean_actor_staleness=17.25), REPLAY)
    for row in (
        r"learners +2 ",
        r"actor staleness +17\.2 versions",
        r"inserts/s +400\.0 ",
        r"samples/s +3,100\.0 ",
        r"items in memory +25,000 ",
        r"capacity +50,000 ",
        r"samples/insert +7\.75 ",
        r"updates/s +96\.9 ",
        r"age of samples +12,346 items ",
    ):
        assert re.search(row, text), row
    assert "replay servers answer" not in text
    assert "1 of 2 replay servers answer" in rendered(PROGRESS, dataclasses.replace(REPLAY, answering=1))
    assert panel._line(PROGRESS, REPLAY).endswith("  25,000 items, 7.75 samples an insert")


def test_replay_memory_with_unknown_rates_is_shown() -> None:
    text = rendered(dataclasses.replace(PROGRESS, learners=1), ReplayProgress(1, 0, 0, 0, 0.0))
    for name in ("actor staleness", "inserts/s", "samples/s"):
        assert re.search(rf"{name} +–", text), name
    no_inserts = dataclasses.replace(REPLAY, inserts_per_second=0.0)
    assert re.search(r"samples/insert +–", rendered(PROGRESS, no_inserts))


LARGE = dataclasses.replace(
    PROGRESS,
    global_step=123_456_789,
    updates=61_234_567,
    episodes=12_345_678,
    mean_return_100=-12_345.6,
    workers=1_000,
    exploit_workers=24,
    learners=16,
    mean_actor_staleness=12_345.6,
    discarded=2_000_123,
    discarded_stale=2_000_000,
    discarded_not_finite=23,
    discarded_loss=100,
    checkpoint_global_step=123_400_000,
    checkpoint_error=LATE,
    max_global_step=10**9,
    seconds=12_345.0,
)
LARGE_REPLAY = dataclasses.replace(REPLAY, size=987_654, capacity=1_000_000, mean_age=1_234_567.0)


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_large_figures_fit_any_width_uncut(width: int) -> None:
    plan = dataclasses.replace(make_plan("da3c_gym_cartpole", []), name="experiment" * 9, environment_name="World" * 20)
    text = rendered(LARGE, LARGE_REPLAY, width, plan)
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    for number in (
        "123,456,789", "10,000", "12,345,678", "-12,345.6", "61,234,567", "12,345.6", "2,000,123", "2,000,000",
        "987,654", "1,000,000", "1,234,567", "123,400,000", "3:25:45", "24:20:53", "0.432 ms",
    ):  # fmt: skip
        assert re.search(rf"(?<![\d,.]){re.escape(number)}(?![\d,.])", text), number
    assert lines[0].count("…") == (1 if width == 200 else 2), "the longest names are shortened"
    assert lines[0].endswith("by da3c ─╮")


@pytest.mark.parametrize(("width", "columns"), [(40, 1), (60, 1), (80, 2), (120, 3), (200, 4)])
def test_wider_terminal_has_more_columns(width: int, columns: int) -> None:
    first = rendered(PROGRESS, width=width).splitlines()[1]
    assert len(re.findall(r"[a-z/ ]+? {2,}[\d:.]+", first)) == columns
