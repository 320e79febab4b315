from __future__ import annotations

import queue
from pathlib import Path

import pytest

import relaax.metrics.writer as writer_module
from relaax.checkpoint import StoreError, Value
from relaax.metrics import MetricsWriter
from relaax.metrics.copying import MetricsCopy
from support.processes import wait_until
from support.stores import MemoryStore

NAME = "events.out.tfevents.1700000000.host.1.0"


class ReportingStore(MemoryStore):
    """A store that reports each attempt to put a value."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts: queue.Queue[str] = queue.Queue()

    def put(self, key: str, value: Value) -> None:
        try:
            super().put(key, value)
        finally:
            self.attempts.put(key)


def test_only_files_that_grew_are_copied(tmp_path: Path) -> None:
    store, file = ReportingStore(), tmp_path / NAME
    file.write_bytes(b"abc")
    copy = MetricsCopy(tmp_path, store, interval=0.01)
    copy.start()
    assert store.attempts.get(timeout=30) == NAME
    with file.open("ab") as more:
        more.write(b"def")
    assert store.attempts.get(timeout=30) == NAME
    (tmp_path / "events.out.tfevents.empty").write_bytes(b"")
    copy.close()
    assert store.values == {NAME: b"abcdef"}
    assert store.puts == [NAME, NAME]


def test_unavailable_store_is_logged_once_and_retried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = ReportingStore()
    store.failing = StoreError("unavailable")
    (tmp_path / NAME).write_bytes(b"abc")
    copy = MetricsCopy(tmp_path, store, interval=0.01)
    copy.start()
    for _ in range(4):
        store.attempts.get(timeout=30)
    store.failing = None
    wait_until(lambda: store.values, "the file is copied")
    copy.close()
    assert caplog.text.count("metrics cannot be copied to memory, retrying: unavailable") == 1
    assert caplog.text.count("metrics are copied to memory again") == 1


def test_close_makes_the_last_copy(tmp_path: Path) -> None:
    store = MemoryStore()
    copy = MetricsCopy(tmp_path, store, interval=1000)
    copy.start()
    (tmp_path / NAME).write_bytes(b"abc")
    copy.close()
    assert store.values == {NAME: b"abc"}


def test_missing_folder_is_not_an_error(tmp_path: Path) -> None:
    copy = MetricsCopy(tmp_path / "later", MemoryStore(), interval=1000)
    copy.start()
    copy.close()


def test_files_copied_by_earlier_process_are_skipped(tmp_path: Path) -> None:
    store = MemoryStore()
    for content, puts in ((b"abc", 1), (b"abc", 1), (b"abcdef", 2)):
        (tmp_path / NAME).write_bytes(content)
        copy = MetricsCopy(tmp_path, store, interval=1000)
        copy.start()
        copy.close()
        assert store.puts == [NAME] * puts
    assert store.values == {NAME: b"abcdef"}


def test_copied_bytes_are_proportional_to_written_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates are those of a long training, divided by 20. A single file would be copied as a whole each time."""
    monkeypatch.setattr(writer_module, "EVENT_FILE_BYTES", writer_module.EVENT_FILE_BYTES // 20)
    store, step, copied = MemoryStore(), 0, 0
    copy = MetricsCopy(tmp_path, store, interval=1000)
    writer = MetricsWriter(tmp_path, lambda: (step, {"a" * 5000: 1.0}), interval=1000)
    while (total := sum(path.stat().st_size for path in tmp_path.iterdir())) < 500_000:
        step += 1
        writer._write()
        copied += copy._copy()
    writer._abandon()
    assert copied < 10 * total
    assert sum(map(len, store.values.values())) == total
