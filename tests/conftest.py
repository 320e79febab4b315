from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from relaax.libraries import LIBRARY_VARIABLES
from support.disks import Disk, small_disk
from support.processes import Processes
from support.unchanged import Unchanged

if TYPE_CHECKING:
    from support.run import Runs
    from support.s3_server import S3Proxy, S3Server

# This process forks, so numpy must start no threads. The variable is removed again, because the processes that tests
# start must not depend on it. The import of a server's module sets other variables; the hook below removes them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy  # noqa: F401

# The reader of event files imports TensorFlow, which takes seconds, unless this module exists.
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")


def _remove_library_variables() -> None:
    for name in LIBRARY_VARIABLES:
        os.environ.pop(name, None)


def _restore_signals() -> None:
    """Undo the changes of nohup: processes that tests start must neither ignore nor block signals.

    An empty handler still ignores the signal in this process. `exec` resets a handled signal to its default action, but
    keeps an ignored one ignored. Python itself ignores SIGPIPE and SIGXFSZ, and subprocess restores them.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in signal.valid_signals() - {signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_remove_library_variables()
_restore_signals()

# Examples have no deadline, because a busy machine would exceed it. A failure prints how to repeat it.
hypothesis.settings.register_profile("relaax", deadline=None, print_blob=True)
hypothesis.settings.load_profile("relaax")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--short",
        action="store_true",
        help="run slow tests in a short form, and skip the ones with unchanged files",
    )
    parser.addoption("--record", action="store_true", help="record passed tests for later runs with --short")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Unchanged())


_IDLE_TESTS = ("test_run_disk.py", "parameter_server/test_storage.py", "parameter_server/test_spool.py")
_TENSORFLOW_TESTS = (
    "tests/nn/",
    "tests/optim/test_optimizers.py",
    "tests/algorithms/da3c/test_engines.py",
    "tests/algorithms/da3c/test_loss.py",
    "tests/algorithms/n_step_q/test_lstm.py",
    "tests/algorithm_base/test_local_optimizer.py",
)
_SLOW_FIXTURE_FILES = ("test_images.py", "test_packaging.py")


class GroupScheduling(LoadScopeScheduling):
    """A scheduler that keeps some tests in one worker.

    The tests of the images and of the wheel share a fixture that takes minutes. The tests of Ray share ports of the
    machine. Some slow tests wait for a minute or longer without using a processor. TensorFlow, whose import takes
    seconds, is loaded in one worker. Every other test runs in any worker.

    The mark xdist_group would do that, but has no effect: pytest 9.2 does not use the node ids that xdist 3.8 sets.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        if "tests/cluster/" in file or file.startswith("cluster/"):
            return "cluster"
        if f"tests/{file.removeprefix('tests/')}".startswith(_TENSORFLOW_TESTS):
            return "tensorflow"
        if file.endswith(_IDLE_TESTS):
            return "waiting"
        return file if file.endswith(_SLOW_FIXTURE_FILES) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return the scheduler for `--dist loadgroup`; None means the default of xdist."""
    return GroupScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Remove the variables that the import of a server's module sets, before a fixture starts a process."""
    _remove_library_variables()


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the state files of servers in the folder of the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.getbasetemp() / "state")


@pytest.fixture
def short(request: pytest.FixtureRequest) -> bool:
    """Return whether slow tests run in their short form."""
    return bool(request.config.getoption("--short"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of 256 kB."""
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """A starter of processes. All of them and their children end with the test, even if it fails."""
    with Processes(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with the S3 protocol. Each test has its own buckets."""
    from support.s3_server import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    """A proxy before the S3 server that causes faults on demand."""
    from support.s3_server import S3Proxy

    with S3Proxy(s3.address) as between:
        yield between


@pytest.fixture
def runs(processes: Processes, tmp_path: Path) -> Iterator[Runs]:
    """A starter of `relaax run` commands. All processes that they start end with the test."""
    from support.run import all_ended

    with all_ended(processes, tmp_path) as started:
        yield started
