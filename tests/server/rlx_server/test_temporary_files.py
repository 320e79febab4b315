"""What workers leave in the temporary directory, however they end: nothing."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaax import rlx
from relaax.server.rlx_server.temporary import WorkerFolders, own_folder
from support.offline import ALGORITHM, SERVER, write_config
from support.processes import Processes, wait_until
from support.rlx_line import Line

# Before a function is traced, autograph writes what it has made of it to a temporary file.
COMPILED = """

import tensorflow as tf

class Agent(Agent):
    def _act(self, observations):
        def negative(x):
            return -x if tf.reduce_sum(x) > 0 else x

        tf.function(negative)(tf.ones([2]))
        return super()._act(observations)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """This process's temporary directory."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_a_worker_leaves_nothing_in_the_temporary_directory(processes: Processes, tmp_path: Path) -> None:
    algorithm, temporary = tmp_path / "compiled.py", tmp_path / "temporary"
    algorithm.write_text(ALGORITHM.read_text() + COMPILED)
    temporary.mkdir()
    config = write_config(tmp_path, {"path": str(algorithm)})
    server = processes.start(sys.executable, SERVER, "--config", config, env={"TMPDIR": str(temporary)})
    address = server.wait_for_address()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        with Line(address) as line:
            line.open()
            line.init()
            assert files(temporary), "this test proves nothing otherwise"
            if number is None:
                line.say(rlx.Bye())
                line.expect_end()
            else:
                (worker,) = server.children()
                worker.send_signal(number)
        wait_until(lambda: not server.children(), "the worker has ended")
        wait_until(lambda: not [*temporary.glob("*/*")], "the server has cleared up after it")
    with Line(address) as line:
        line.open()
        line.init()
        (worker,) = server.children()
        worker.suspend()  # the server kills it in the end
        assert server.stop() == 0
    assert list(temporary.iterdir()) == []


def test_a_folder_that_was_tidied_away_is_made_anew(temporary: Path) -> None:
    folders = WorkerFolders()
    first = folders.made()
    assert first is not None
    assert folders.made() == first
    first.rmdir()
    second = folders.made()
    assert second is not None
    (second / "7").mkdir()
    (second / "7" / "left").touch()
    folders.remove(7)
    folders.remove(8)  # it had none
    assert list(second.iterdir()) == []
    folders.close()
    folders.close()
    assert list(temporary.iterdir()) == []


def test_without_a_folder_workers_serve_all_the_same(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as full:
        full.setattr(tempfile, "mkdtemp", _fail)
        folders = WorkerFolders()
        assert folders.made() is None
        assert folders.made() is None
        folders.remove(7)
        folders.close()
    assert len(caplog.records) == 1
    for parent in (None, temporary / "gone"):
        with own_folder(parent):
            assert tempfile.gettempdir() == str(temporary)


def test_a_workers_own_folder_goes_with_it(temporary: Path) -> None:
    with own_folder(temporary):
        (Path(tempfile.gettempdir()) / "left").touch()
        assert [path.name for path in temporary.iterdir()] == [str(os.getpid())]
    assert list(temporary.iterdir()) == []


def _fail(**_: object) -> str:
    raise OSError("no space left")
