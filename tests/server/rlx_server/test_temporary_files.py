"""Tests that workers leave no files in the temporary directory, however they end."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relaax import rlx
from relaax.server.rlx_server.temporary_folders import PREFIX, WorkerFolders, own_folder, remove_leftovers
from support.offline import ALGORITHM, SERVER, write_config
from support.processes import Processes, Running, wait_until
from support.rlx_line import Line

pytestmark = pytest.mark.checks("relaax/server/rlx_server")

# Before a function is traced, autograph writes its generated code to a temporary file.
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
    """Set the temporary directory of this process."""
    path = tmp_path / "temporary"
    path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    yield path


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_ended_workers_leave_no_temporary_files(processes: Processes, tmp_path: Path) -> None:
    algorithm, temporary = tmp_path / "compiled.py", tmp_path / "temporary"
    algorithm.write_text(ALGORITHM.read_text() + COMPILED)
    temporary.mkdir()
    config = write_config(tmp_path, {"path": str(algorithm)})
    server = processes.start(sys.executable, SERVER, "--config", config, env={"TMPDIR": str(temporary)}, fresh=True)
    address = server.wait_for_address()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        with Line(address) as line:
            line.open()
            line.init()
            assert files(temporary), "the worker has written a temporary file"
            if number is None:
                line.send(rlx.Bye())
                line.expect_end()
            else:
                (worker,) = server.children()
                worker.send_signal(number)
        wait_until(lambda: not server.children(), "the worker has ended")
        wait_until(lambda: not [*temporary.glob("*/*")], "the server has removed the worker's files")
    with Line(address) as line:
        line.open()
        line.init()
        (worker,) = server.children()
        worker.suspend()  # the server kills it when it stops
        assert server.stop() == 0
    assert list(temporary.iterdir()) == []


def test_removed_temporary_folder_is_created_again(temporary: Path) -> None:
    folders = WorkerFolders()
    first = folders.ensure()
    assert first is not None
    assert folders.ensure() == first
    first.rmdir()
    second = folders.ensure()
    assert second is not None
    (second / "7").mkdir()
    (second / "7" / "left").touch()
    folders.remove(7)
    folders.remove(8)  # worker 8 has no folder
    assert list(second.iterdir()) == []
    folders.close()
    folders.close()
    assert list(temporary.iterdir()) == []


def test_missing_temporary_folder_is_logged_and_ignored(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as full:
        full.setattr(tempfile, "mkdtemp", _fail)
        folders = WorkerFolders()
        assert folders.ensure() is None
        assert folders.ensure() is None
        folders.remove(7)
        folders.close()
    assert len(caplog.records) == 1
    for parent in (None, temporary / "missing"):
        with own_folder(parent):
            assert tempfile.gettempdir() == str(temporary)


def test_temporary_folder_of_a_worker_is_removed_with_it(temporary: Path) -> None:
    with own_folder(temporary):
        (Path(tempfile.gettempdir()) / "left").touch()
        assert [path.name for path in temporary.iterdir()] == [str(os.getpid())]
    assert list(temporary.iterdir()) == []


def test_folder_of_a_killed_server_is_removed_by_the_next(processes: Processes, tmp_path: Path) -> None:
    """Servers share one temporary directory. The folder of a killed server is kept until its last worker has ended."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    config = write_config(tmp_path)

    def start() -> tuple[Running, str]:
        server = processes.start(sys.executable, SERVER, "--config", config, env={"TMPDIR": str(temporary)})
        return server, server.wait_for_address()

    def folders() -> set[Path]:
        return set(temporary.iterdir())

    _, running_address = start()
    with Line(running_address) as line:
        line.open()
        line.init()
        (kept,) = folders()
        killed, address = start()
        with Line(address) as other:
            other.open()
            other.init()
            assert len(folders()) == 2, "each server has one folder"
            (worker,) = killed.children()
            worker.suspend()  # it does not notice the end of its server, and keeps its inherited lock
            killed.kill()
            start()
            assert len(folders()) == 2, "a worker still uses it"
            worker.kill()
            wait_until(lambda: not killed.children(), "the worker has ended")
        assert len(folders()) == 2
        server, _ = start()
        assert folders() == {kept}
        assert "removed the temporary folder of a killed server" in server.stderr
        assert line.step() == 0
        assert kept.is_dir()


def test_remove_leftovers_keeps_everything_of_other_owners(temporary: Path, tmp_path: Path) -> None:
    """Links, files, pipes, folders with other names, folders writable by others, and folders of other users stay."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (temporary / f"{PREFIX}link").symlink_to(outside)
    (temporary / f"{PREFIX}file").touch()
    os.mkfifo(temporary / f"{PREFIX}pipe")
    (temporary / "relaax-rlx-server-other").mkdir()
    (temporary / f"{PREFIX}shared").mkdir()
    (temporary / f"{PREFIX}shared").chmod(0o777)
    if os.geteuid() == 0:
        (temporary / f"{PREFIX}foreign").mkdir()
        os.chown(temporary / f"{PREFIX}foreign", 12345, 12345)
    before = set(temporary.rglob("*"))
    left = temporary / f"{PREFIX}left"
    (left / "4711").mkdir(parents=True)
    (left / "4711" / "link").symlink_to(outside)
    left.chmod(0o700)
    remove_leftovers()
    assert set(temporary.rglob("*")) == before
    assert (outside / "precious").exists()


def test_folder_removed_by_a_starting_server_is_created_again(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server may start after the folder is created and before it is locked, and remove it."""
    make, created = tempfile.mkdtemp, []

    def make_and_remove(prefix: str) -> str:
        created.append(make(prefix=prefix))
        if len(created) == 1:
            remove_leftovers()
        return created[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_remove)
    folders = WorkerFolders()
    path = folders.ensure()
    assert path == Path(created[1])
    remove_leftovers()
    assert path.is_dir(), "the locked folder is in use"
    folders.close()
    assert list(temporary.iterdir()) == []


def _fail(**_: object) -> str:
    raise OSError("no space left")
