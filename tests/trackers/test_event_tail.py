"""The reader of event files that are being written."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from relaax.metrics.writer import EventFile
from relaax.server.tracker.event_tail import EventTail, Scalar, thinned


def _add(file: EventFile, step: int, **values: float) -> None:
    summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in values.items()])
    file.add(Event(wall_time=float(step), step=step, summary=summary))
    file.flush()


def _steps(scalars: list[Scalar]) -> list[int]:
    return [scalar.step for scalar in scalars]


def test_scalars_are_read_once(tmp_path: Path) -> None:
    tail = EventTail(tmp_path / "metrics")
    assert tail.read(10) == []
    (tmp_path / "metrics").mkdir()
    file = EventFile(tmp_path / "metrics")
    _add(file, 1, loss=0.5, speed=2.0)
    assert tail.read(10) == [Scalar("loss", 0.5, 1.0, 1), Scalar("speed", 2.0, 1.0, 1)]
    assert tail.read(10) == []
    _add(file, 2, loss=0.25)
    assert _steps(tail.read(10)) == [2]
    file.close()


def test_reading_continues_from_a_position(tmp_path: Path) -> None:
    files = [EventFile(tmp_path) for _ in range(3)]
    for step, file in enumerate(files, 1):
        _add(file, 2 * step, loss=0.0)
        _add(file, 2 * step + 1, loss=0.0)
        file.close()
    tail, found = EventTail(tmp_path), []
    while scalars := tail.read(2):
        found += _steps(scalars)
        tail = EventTail(tmp_path, tail.position)
    assert found == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("missing", [1, 4, 5, 20])
def test_incomplete_event_is_read_when_it_is_complete(tmp_path: Path, missing: int) -> None:
    written = EventFile(tmp_path)
    _add(written, 1, loss=0.0)
    _add(written, 2, loss=0.0)
    written.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-missing])
    tail = EventTail(tmp_path)
    assert _steps(tail.read(10)) == [1]
    path.write_bytes(whole)
    assert _steps(tail.read(10)) == [2]


def test_rest_of_a_damaged_file_is_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = EventFile(tmp_path)
    _add(written, 1, loss=0.0)
    _add(written, 2, loss=0.0)
    written.close()
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[-20:-4] = b"\xff" * 16
    path.write_bytes(content)
    with contextlib.closing(EventFile(tmp_path)) as later:
        _add(later, 3, loss=0.0)
        assert _steps(EventTail(tmp_path).read(10)) == [1, 3]
    assert "is damaged at byte" in caplog.text


def test_thinned_keeps_the_last_value_of_each_period() -> None:
    scalars = [Scalar(name, float(second), float(second), second) for second in range(25) for name in ("a", "b")]
    kept = thinned(scalars, 10.0)
    assert sorted((one.name, one.step) for one in kept) == [(name, step) for name in "ab" for step in (9, 19, 24)]
    assert _steps(kept) == sorted(_steps(kept))
