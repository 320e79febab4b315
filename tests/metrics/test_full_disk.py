"""Metrics on a full disk: a small separate file system."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from relaax.metrics import MetricsWriter, writer
from support.disks import Disk
from support.processes import wait_until


class Steps:
    """A source of one scalar per call; `calls` is the number of calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> tuple[int, Mapping[str, float]]:
        self.calls += 1
        return self.calls, {"a": 1.0}


def steps(folder: Path) -> list[int]:
    paths = sorted(folder.glob("events.out.tfevents.*"))
    found = [event for path in paths for event in EventFileLoader(str(path)).Load()]
    return [event.step for event in found if event.summary.value]


def events(disk: Disk) -> list[int]:
    return [path.stat().st_size for path in disk.path.rglob("events.out.tfevents.*")]


def test_writing_resumes_after_full_disk_without_empty_files(
    disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.5)
    caplog.set_level(logging.INFO)
    source = Steps()
    metrics = MetricsWriter(disk.path / "run", source, interval=0.01)
    (disk.path / "run").mkdir()
    disk.fill()
    metrics.start()
    try:
        wait_until(lambda: source.calls > 6, "another attempt", timeout=120)
        assert len([record for record in caplog.records if "cannot be written" in record.message]) == 1
        assert events(disk) == [], "a failed attempt leaves no file"
        disk.free()
        wait_until(lambda: "are written to" in caplog.text, "writing resumes", timeout=120)
    finally:
        metrics.close()
    assert len(events(disk)) == 1
    assert steps(disk.path / "run")


def test_disk_that_fills_up_keeps_written_metrics(
    disk: Disk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "RETRY", 0.5)
    caplog.set_level(logging.INFO)
    source = Steps()
    metrics = MetricsWriter(disk.path / "run", source, interval=0.01)
    metrics.start()
    try:
        wait_until(lambda: source.calls > 3, "it writes", timeout=120)
        disk.fill()
        wait_until(lambda: "cannot be written" in caplog.text, "the disk is full", timeout=120)
        calls = source.calls
        wait_until(lambda: source.calls > calls + 4, "another attempt", timeout=120)
        disk.free()
        wait_until(lambda: "are written to" in caplog.text, "writing resumes", timeout=120)
        calls = source.calls
        wait_until(lambda: source.calls > calls + 2, "writing resumes", timeout=120)
    finally:
        metrics.close()
    assert len(events(disk)) == 2
    assert all(size > 0 for size in events(disk))
    assert min(steps(disk.path / "run")) == 1
    assert max(steps(disk.path / "run")) == source.calls


def test_pauses_between_attempts_grow(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    source = Steps()
    metrics = MetricsWriter(tmp_path / "file" / "run", source, interval=0.001)
    metrics.start()
    wait_until(lambda: metrics._pause >= 0.5, "the pause has grown", timeout=120)
    attempts = source.calls
    metrics.close()
    assert attempts <= 11, "the pause is not reset: 0.001 s doubles nine times"
