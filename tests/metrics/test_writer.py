from __future__ import annotations

import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.summary_pb2 import Summary

import relaax.metrics.writer as writer_module
from relaax.metrics import MetricsWriter
from support.processes import wait_until


def written(directory: Path) -> list[tuple[int, str, float]]:
    """(step, name, value) of every scalar in the directory's event files, oldest file first."""
    found = []
    for path in sorted(directory.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                scalar = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
                found.append((event.step, value.tag, scalar))
    return found


class Source:
    """A source that returns the given items, then no scalars."""

    def __init__(self, *given: tuple[int, dict[str, float]]) -> None:
        self.given: queue.SimpleQueue[tuple[int, dict[str, float]]] = queue.SimpleQueue()
        for item in given:
            self.given.put(item)

    def __call__(self) -> tuple[int, Mapping[str, float]]:
        try:
            return self.given.get_nowait()
        except queue.Empty:
            return 0, {}


def run(directory: Path, *given: tuple[int, dict[str, float]]) -> None:
    source = Source(*given)
    writer = MetricsWriter(directory, source, interval=0.001)
    writer.start()
    while not source.given.empty():
        pass
    writer.close()


def test_scalars_are_written_at_their_step(tmp_path: Path) -> None:
    run(tmp_path / "run", (10, {"loss/value": 0.5, "episode/return": 21.0}), (0, {}), (20, {"loss/value": 0.25}))
    assert written(tmp_path / "run") == [
        (10, "episode/return", 21.0),
        (10, "loss/value", 0.5),
        (20, "loss/value", 0.25),
    ]


def test_close_writes_remaining_scalars(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, Source((1, {"a": 1.0})), interval=1000)
    writer.start()
    writer.close()
    assert written(tmp_path) == [(1, "a", 1.0)]


def test_later_run_adds_to_directory(tmp_path: Path) -> None:
    run(tmp_path, (1, {"a": 1.0}))
    run(tmp_path, (2, {"a": 2.0}))
    assert sorted(written(tmp_path)) == [(1, "a", 1.0), (2, "a", 2.0)]


def test_directory_that_cannot_be_created_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    run(tmp_path / "file" / "run", (1, {"a": 1.0}), (2, {"a": 1.0}), (3, {"a": 1.0}))
    assert len(caplog.records) == 1
    assert "metrics cannot be written" in caplog.text


class Preface:
    """A preface of two values, or one that fails."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def begun(self) -> list[Any]:
        if self.fails:
            raise TypeError("no text form")
        return [Summary.Value(tag="begun", simple_value=1.0)]

    def ended(self) -> list[Any]:
        return [Summary.Value(tag="ended", simple_value=2.0)]


def test_preface_is_written_before_and_after_scalars(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, Source((7, {"a": 1.0})), interval=1000, preface=Preface())
    writer.start()
    writer.close()
    assert written(tmp_path) == [(0, "begun", 1.0), (7, "a", 1.0), (0, "ended", 2.0)]


def test_failing_preface_does_not_stop_scalars(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = MetricsWriter(tmp_path, Source((7, {"a": 1.0})), interval=1000, preface=Preface(fails=True))
    writer.start()
    writer.close()
    assert written(tmp_path) == [(7, "a", 1.0)]
    assert "no text form" in caplog.text
    assert len(caplog.records) == 1


class Start:
    """The start of a training; tests change `now`."""

    def __init__(self) -> None:
        self.now: tuple[object, int] = "first", 0

    def __call__(self) -> tuple[object, int]:
        return self.now


def as_tensorboard_shows(directory: Path, name: str) -> list[int]:
    """Return the steps of a scalar."""
    shown = EventAccumulator(str(directory), size_guidance={SCALARS: 0})
    shown.Reload()
    return [event.step for event in shown.Scalars(name)]


def test_points_undone_by_crash_are_not_shown(tmp_path: Path) -> None:
    """A server ends at step 40 and another one continues from a checkpoint at step 20."""
    start = Start()
    for start.now, steps in ((("first", 0), (10, 20, 30, 40)), (("second", 20), (25, 35))):
        source = Source(*((step, {"a": 1.0}) for step in steps))
        run_source(tmp_path, source, start)
    assert as_tensorboard_shows(tmp_path, "a") == [10, 20, 25, 35]


def test_points_of_run_without_checkpoint_are_not_shown(tmp_path: Path) -> None:
    start = Start()
    for start.now in (("first", 0), ("second", 0)):
        run_source(tmp_path, Source((10, {"a": 1.0}), (20, {"a": 1.0})), start)
    assert as_tensorboard_shows(tmp_path, "a") == [10, 20]


def test_roll_back_within_server_purges_points(tmp_path: Path) -> None:
    start = Start()

    class RolledBack(Source):
        def __call__(self) -> tuple[int, Mapping[str, float]]:
            step, scalars = super().__call__()
            if step == 40:
                start.now = "second", 20  # from this call on
            return step, scalars

    run_source(tmp_path, RolledBack(*((step, {"a": 1.0}) for step in (10, 20, 30, 40, 25, 35))), start)
    assert as_tensorboard_shows(tmp_path, "a") == [10, 20, 25, 35]


def run_source(directory: Path, source: Source, start: Start) -> None:
    writer = MetricsWriter(directory, source, interval=0.001, origin=start)
    writer.start()
    wait_until(source.given.empty, "the source is empty")
    writer.close()


def test_later_file_sorts_last_despite_clock_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step, now in ((1, 2_000_000_000.0), (2, 1_000_000_000.0), (3, 1_500_000_000.0)):
        monkeypatch.setattr(writer_module.time, "time", lambda now=now: now)
        run(tmp_path, (step, {"a": float(step)}))
    assert [step for step, _, _ in written(tmp_path)] == [1, 2, 3]


def test_file_of_another_program_may_have_any_name(tmp_path: Path) -> None:
    for name in ("events.out.tfevents.x", "events.out.tfevents.99999999999999.host", "events.out.tfevents.7"):
        (tmp_path / name).touch()
    run(tmp_path, (1, {"a": 1.0}))
    assert (1, "a", 1.0) in written(tmp_path)


def test_long_run_has_several_files_and_one_preface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "EVENT_FILE_BYTES", 1000)
    source = Source(*((step, {"a": 1.0}) for step in range(1, 101)))
    writer = MetricsWriter(tmp_path, source, interval=0.0001, preface=Preface())
    writer.start()
    wait_until(source.given.empty, "the source is empty")
    writer.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) > 3
    assert max(sizes) < 1200
    assert as_tensorboard_shows(tmp_path, "a") == list(range(1, 101))
    assert [name for _, name, _ in written(tmp_path) if name != "a"] == ["begun", "ended"]
