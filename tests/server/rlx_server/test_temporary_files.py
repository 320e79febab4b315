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
from relaax.server.rlx_server.temporary_folders import PREFIX, WorkerFolders, own_folder, remove_leftovers
from support.offline import ALGORITHM, SERVER, write_config
from support.processes import Processes, Running, wait_until
from support.rlx_line import Line

pytestmark = pytest.mark.checks("relaax/server/rlx_server")

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
    server = processes.start(sys.executable, SERVER, "--config", config, env={"TMPDIR": str(temporary)}, fresh=True)
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
    first = folders.ensure()
    assert first is not None
    assert folders.ensure() == first
    first.rmdir()
    second = folders.ensure()
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
        assert folders.ensure() is None
        assert folders.ensure() is None
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


def test_what_a_killed_server_leaves_the_next_one_removes_and_a_living_ones_stays(
    processes: Processes, tmp_path: Path
) -> None:
    """Three servers beside each other in one temporary directory; one is killed, with a worker and without."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    config = write_config(tmp_path)

    def started() -> tuple[Running, str]:
        server = processes.start(sys.executable, SERVER, "--config", config, env={"TMPDIR": str(temporary)})
        return server, server.wait_for_address()

    def folders() -> set[Path]:
        return set(temporary.iterdir())

    _, living_address = started()
    with Line(living_address) as line:
        line.open()
        line.init()
        (kept,) = folders()
        killed, address = started()
        with Line(address) as other:
            other.open()
            other.init()
            assert len(folders()) == 2, "each server has one"
            (worker,) = killed.children()
            worker.suspend()  # it cannot see that its server is gone, and has what it inherited
            killed.kill()
            started()
            assert len(folders()) == 2, "a worker still uses it"
            worker.kill()
            wait_until(lambda: not killed.children(), "the worker has ended")
        assert len(folders()) == 2
        server, _ = started()
        assert folders() == {kept}
        assert "removed the temporary folder of a killed server" in server.stderr
        assert line.step() == 0
        assert kept.is_dir()


def test_nothing_is_removed_that_is_not_a_dead_servers_own(temporary: Path, tmp_path: Path) -> None:
    """Links, files, pipes, other names, folders that others may write to, and those of other users."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").touch()
    (temporary / f"{PREFIX}link").symlink_to(elsewhere)
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
    (left / "4711" / "link").symlink_to(elsewhere)
    left.chmod(0o700)
    remove_leftovers()
    assert set(temporary.rglob("*")) == before
    assert (elsewhere / "precious").exists()


def test_a_folder_that_a_starting_server_took_for_anothers_is_made_again(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its making and its lock another server may start, and find it locked by nobody."""
    make, made = tempfile.mkdtemp, []

    def taken_at_once(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            remove_leftovers()
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", taken_at_once)
    folders = WorkerFolders()
    path = folders.ensure()
    assert path == Path(made[1])
    remove_leftovers()
    assert path.is_dir(), "it is in use"
    folders.close()
    assert list(temporary.iterdir()) == []


def _fail(**_: object) -> str:
    raise OSError("no space left")
