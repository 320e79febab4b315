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

# This process forks, so numpy must start no threads. The variable is removed again: the processes that tests start must
# not depend on it. The import of a server's module sets others, hence the hook below.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy  # noqa: F401

# The reader of event files imports TensorFlow, which takes seconds, unless there is this module.
sys.modules["tensorboard.compat.notf"] = ModuleType("tensorboard.compat.notf")


def _remove_library_variables() -> None:
    for name in LIBRARY_VARIABLES:
        os.environ.pop(name, None)


def _restore_signals() -> None:
    """Let the processes that tests start have no signal ignored or blocked, as under nohup or in the background.

    A handler that does nothing still ignores the signal in this process. `exec` resets a handled signal to its default
    action, and leaves an ignored one ignored. Python itself ignores SIGPIPE and SIGXFSZ, and subprocess restores them.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in signal.valid_signals() - {signal.SIGPIPE, getattr(signal, "SIGXFSZ", None)}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_remove_library_variables()
_restore_signals()

# No deadline for an example: on a busy machine it measures the machine. A failure prints how to repeat it.
hypothesis.settings.register_profile("relaax", deadline=None, print_blob=True)
hypothesis.settings.load_profile("relaax")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--short", action="store_true", help="let the slow tests do less, and skip what has not changed")
    parser.addoption("--record", action="store_true", help="write down what passed, for later runs with --short")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Unchanged())


_WAITING = ("test_run_disk.py", "parameter_server/test_storage.py", "parameter_server/test_spool.py")
_TENSORFLOW = (
    "tests/nn/",
    "tests/optim/test_optimizers.py",
    "tests/algorithms/da3c/test_engines.py",
    "tests/algorithms/da3c/test_loss.py",
    "tests/algorithms/n_step_q/test_lstm.py",
    "tests/algorithm_base/test_local_optimizer.py",
)
_FIXTURES_OF_MINUTES = ("test_images.py", "test_packaging.py")


class SomeTogether(LoadScopeScheduling):
    """Keep some tests in one worker: the tests of the images and of the wheel share a fixture that takes minutes, the
    tests of Ray share ports of the machine, some slow tests wait for a minute or longer without using a processor,
    and TensorFlow, whose import takes seconds, is loaded in one worker. Every other test goes to any worker.

    The mark xdist_group is for that, and does nothing: pytest 9.2 does not see the node ids that xdist 3.8 sets.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        if "tests/cluster/" in file or file.startswith("cluster/"):
            return "cluster"
        if f"tests/{file.removeprefix('tests/')}".startswith(_TENSORFLOW):
            return "tensorflow"
        if file.endswith(_WAITING):
            return "waiting"
        return file if file.endswith(_FIXTURES_OF_MINUTES) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadgroup`; else what xdist has."""
    return SomeTogether(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Remove what the import of a server's module has set, before any fixture starts a process."""
    _remove_library_variables()


@pytest.fixture(autouse=True, scope="session")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a server leaves for its next start, it leaves where the tests are."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.getbasetemp() / "state")


@pytest.fixture
def short(request: pytest.FixtureRequest) -> bool:
    """Whether a slow test should do less of the same."""
    return bool(request.config.getoption("--short"))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A file system of 256 kB."""
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes; every one of them and of their children has ended when the test has, however it ended."""
    with Processes(tmp_path) as started:
        yield started


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A store that speaks S3: each test has buckets of its own in it."""
    from support.s3_server import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[S3Proxy]:
    """A way to the store that makes trouble on demand."""
    from support.s3_server import S3Proxy

    with S3Proxy(s3.address) as between:
        yield between


@pytest.fixture
def runs(processes: Processes, tmp_path: Path) -> Iterator[Runs]:
    """Starts `relaax run`s; nothing that they started outlives the test."""
    from support.run import all_ended

    with all_ended(processes, tmp_path) as started:
        yield started
