from __future__ import annotations

import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.summary_pb2 import Summary

from relaax.metrics import MetricsWriter


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
    """Gives what was put in, then nothing."""

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


def test_what_is_left_at_the_end_is_written(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, Source((1, {"a": 1.0})), interval=1000)
    writer.start()
    writer.close()
    assert written(tmp_path) == [(1, "a", 1.0)]


def test_a_later_run_appends_to_the_directory(tmp_path: Path) -> None:
    run(tmp_path, (1, {"a": 1.0}))
    run(tmp_path, (2, {"a": 2.0}))
    assert sorted(written(tmp_path)) == [(1, "a", 1.0), (2, "a", 2.0)]


def test_a_directory_that_cannot_be_made_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    run(tmp_path / "file" / "run", (1, {"a": 1.0}), (2, {"a": 1.0}), (3, {"a": 1.0}))
    assert len(caplog.records) == 1
    assert "metrics cannot be written" in caplog.text


class Said:
    """A preface of two values, or one that fails."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def begun(self) -> list[Any]:
        if self.fails:
            raise TypeError("it has no form")
        return [Summary.Value(tag="begun", simple_value=1.0)]

    def ended(self) -> list[Any]:
        return [Summary.Value(tag="ended", simple_value=2.0)]


def test_what_a_run_says_of_itself_is_around_its_scalars(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path, Source((7, {"a": 1.0})), interval=1000, preface=Said())
    writer.start()
    writer.close()
    assert written(tmp_path) == [(0, "begun", 1.0), (7, "a", 1.0), (0, "ended", 2.0)]


def test_a_run_that_cannot_describe_itself_has_its_scalars(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = MetricsWriter(tmp_path, Source((7, {"a": 1.0})), interval=1000, preface=Said(fails=True))
    writer.start()
    writer.close()
    assert written(tmp_path) == [(7, "a", 1.0)]
    assert "it has no form" in caplog.text
    assert len(caplog.records) == 1
