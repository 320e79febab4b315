"""Spawners of worker processes: forked from the server, or new processes where forking is unsafe.

A forked worker shares the modules that its server has imported. A spawned worker inherits its connection, its lifeline
and its report socket, and reads its orders as JSON from an unnamed file. A file keeps the configuration out of the
process list, and the server can write it before the worker reads. A server that spawns imports neither TensorFlow nor
the algorithm.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.files import anonymous_file
from relaax.server.command.hardware import device_error
from relaax.server.command.logs import configure_logging
from relaax.server.rlx_server.child_process import (
    EXIT_DONE,
    NO_DESCRIPTOR,
    Lifeline,
    command_of,
    describe_exit,
    exit_with,
    fork,
    inherited_descriptors,
    start_process,
)
from relaax.server.rlx_server.clients.accounts import OPEN, Authentication, read_authentication
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.temporary_folders import WorkerFolders, own_folder
from relaax.server.rlx_server.worker_reports import WorkerReports, report_sockets
from relaax.server.rlx_server.workers.plan import RANDOM, OpponentKeys, WorkerPlan, plan_workers
from relaax.server.rlx_server.workers.worker import Worker

if TYPE_CHECKING:
    from relaax.server.rlx_server.inference.keeper import InferenceKeeper

COMMAND = command_of("relaax.server.rlx_server.workers.spawners")
WATCH_MILLISECONDS = 500
_TASKS = Path("/proc/self/task")
_KERNEL_MODULES = {
    "relaax.nn.host.engine",
    "relaax.nn.host.network",
    "relaax.nn.distributions",
    "relaax.algorithm_base.values",
}
"""Modules that use the host's kernels. If an algorithm has imported one, the kernels are loaded before a fork."""


class UnsafeFork(RuntimeError):
    """The server's process has more than one thread, so a forked worker could hang."""


class _Spawner:
    def __init__(self, folders: WorkerFolders, meters: Meters, authentication: Authentication) -> None:
        self._folders = folders
        self._meters = meters
        self._authentication = authentication
        self._lifeline = Lifeline()

    def maintain(self, close_in_child: Callable[[], None]) -> None:
        """Start or restart the processes that workers need. Called in each turn of the server's loop."""

    def stop_workers(self) -> None:
        """Tell every worker to end."""
        self._lifeline.close()

    def close(self) -> None:
        """Wait for the processes of `maintain` to end, after the workers."""


class ForkSpawner(_Spawner):
    """A spawner that forks workers. The server has imported all modules, so a worker is ready in a quarter second.

    Raises UnsafeFork if the process has more than one thread.
    """

    def __init__(
        self, plan: WorkerPlan, folders: WorkerFolders, meters: Meters, authentication: Authentication = OPEN
    ) -> None:
        _import_for_workers()
        _require_one_thread(plan.algorithm.source)
        super().__init__(folders, meters, authentication)
        self._keeper: InferenceKeeper | None = None
        if plan.settings.inference == "shared" and plan.algorithm.name != RANDOM:
            from relaax.server.rlx_server.inference.keeper import InferenceKeeper

            self._keeper = InferenceKeeper(plan, self._lifeline)
            plan = replace(plan, inference=self._keeper.address)
        self._plan = plan
        gc.collect()
        gc.freeze()  # so that children do not copy the pages of existing objects

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]:
        """Start a worker for `sock`. Return its process id and the server's end of its report sockets.

        Raises UnsafeFork and OSError.
        """
        plan = self._plan
        _require_one_thread(plan.algorithm.source)
        folder = self._folders.ensure()
        report_read, report_write = report_sockets()

        def work() -> int:
            os.close(report_read)
            self._lifeline.close()
            if self._keeper is not None:
                self._keeper.close_in_child()
            close_in_child()
            with own_folder(folder):
                reports, end = WorkerReports(report_write), self._lifeline.read
                worker = Worker(plan.settings, lambda: plan, sock, end, reports, self._meters, self._authentication)
                return worker.run(refusal, training_finished)

        try:
            pid = fork(work, "the forked worker failed")
        except OSError:
            os.close(report_read)
            raise
        finally:
            os.close(report_write)
        os.set_blocking(report_read, False)
        return pid, report_read

    def maintain(self, close_in_child: Callable[[], None]) -> None:
        if self._keeper is not None:
            self._keeper.maintain(close_in_child)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()


def thread_count() -> int:
    """Return the number of threads of this process, including native threads if the system lists them."""
    return len(list(_TASKS.iterdir())) if _TASKS.is_dir() else threading.active_count()


def _require_one_thread(algorithm: Path) -> None:
    threads = thread_count()
    if threads != 1:
        raise UnsafeFork(
            f"the process has {threads} threads and cannot fork workers safely; {algorithm} must not run an operation "
            "of TensorFlow or start a thread while it is imported: do that in the agent's constructor"
        )


def _import_for_workers() -> None:
    """Import the modules and load the kernels that workers need, so that all workers share one copy."""
    import numpy.random  # noqa: F401

    import relaax.parameters.client  # noqa: F401

    if not _KERNEL_MODULES.isdisjoint(sys.modules):
        from relaax.nn.host import convolution, dense, kernels, lstm

        for module in (convolution, dense, kernels, lstm):
            module.load_kernels()


def device_refusal(device: str) -> str | None:
    """Return why workers cannot compute on `device`; None if they can.

    Listing GPUs starts their driver, and then the process cannot fork workers that use GPUs. So a child process checks.
    """
    from relaax.nn.devices import CPU

    if device == CPU:
        return None
    read, write = os.pipe()
    pid = fork(lambda: _send_device_error(device, write), f"the check for device {device} failed")
    os.close(write)
    sentence, failure = _read_answer(pid, read)
    if failure:
        return f"the process that checked for device {device} {failure}: use cpu, or repair the GPU's driver"
    return sentence or None


def _send_device_error(device: str, answer: int) -> None:
    os.write(answer, _device_error(device).encode())


def _device_error(device: str) -> str:
    from relaax.nn.devices import NoSuchDevice, use_device

    try:
        use_device(device)
    except NoSuchDevice as refusal:
        return str(refusal)
    return ""


def _read_answer(pid: int, answer: int) -> tuple[str, str]:
    """Return the text that a process writes to `answer`, and how it failed; both are empty if it succeeded."""
    try:
        with os.fdopen(answer, encoding="utf-8") as file:
            sentence = file.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:  # such as KeyboardInterrupt: kill the process, which may hang in an import
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    return sentence, "" if code == EXIT_DONE else describe_exit(code)


class SpawnSpawner(_Spawner):
    """A spawner that starts new processes. Raises ConfigurationError if a trial process shows that workers fail."""

    def __init__(
        self,
        settings: RlxServerSection,
        section: Mapping[str, Any],
        path: str,
        folder: Path,
        folders: WorkerFolders,
        meters: Meters,
        authentication: Authentication = OPEN,
        opponents: OpponentKeys | None = None,
    ) -> None:
        super().__init__(folders, meters, authentication)
        self._orders = {
            "settings": settings.model_dump(mode="json"),
            "section": dict(section),
            "path": path,
            "folder": str(folder),
            "meters": [meters.rows, meters.buckets],
            "opponents": None if opponents is None else asdict(opponents),
        }
        self._check_start()

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]:
        """Start a worker that inherits only its own descriptors; see `ForkSpawner.spawn`. Raises OSError."""
        orders = {
            "refusal": refusal,
            "training_finished": training_finished,
            "temporary": self._folders.ensure(),
            "names": self._authentication.names,  # client names by digests of tokens: orders contain no secrets
        }
        return self._start(sock.fileno(), orders)

    def _check_start(self) -> None:
        pid, answer = self._start(NO_DESCRIPTOR, {})
        os.set_blocking(answer, True)
        refusal, failure = _read_answer(pid, answer)
        if refusal:
            raise ConfigurationError(refusal)
        if failure:
            raise ConfigurationError(f"workers cannot start: the trial process that loads the algorithm {failure}")

    def _start(self, connection: int, more_orders: Mapping[str, Any]) -> tuple[int, int]:
        """Return process id and the server's end of the report sockets. If it raises OSError, no descriptor is left."""
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as its_own:
            report_read, report_write = report_sockets()
            failed.callback(os.close, report_read)
            its_own.callback(os.close, report_write)
            orders = its_own.enter_context(anonymous_file())
            orders.write(json.dumps(self._orders | dict(more_orders), default=str).encode())
            orders.seek(0)
            given = [connection, self._lifeline.read, report_write, self._meters.descriptor, orders.fileno()]
            sys.stdout.flush()
            sys.stderr.flush()
            pid = start_process(COMMAND, given, os.environ)
            os.set_blocking(report_read, False)
            failed.pop_all()
            return pid, report_read


def main() -> None:
    """Run a spawned worker. Descriptors: connection (or NO_DESCRIPTOR), lifeline, reports, meters, orders."""
    given = inherited_descriptors(5)
    exit_with(lambda: _run_orders(*given), "the spawned worker failed")


def _run_orders(connection: int, lifeline: int, reports: int, memory: int, orders_file: int) -> int:
    with os.fdopen(orders_file, encoding="utf-8") as written:
        orders = json.load(written)
    settings = RlxServerSection.model_validate(orders["settings"])
    configure_logging(settings.log_level, settings.log_format)

    def load() -> WorkerPlan:
        with _exit_with(lifeline):
            opponents = orders["opponents"] and OpponentKeys(**orders["opponents"])
            return plan_workers(settings, orders["section"], orders["path"], Path(orders["folder"]), opponents)

    if connection == NO_DESCRIPTOR:
        with contextlib.suppress(BrokenPipeError):  # the server has died
            os.write(reports, _refusal(load).encode())
        return EXIT_DONE
    authentication = read_authentication(settings, orders["names"])  # from the files: orders contain no secrets
    rows, buckets = orders["meters"]
    meters = Meters(rows, buckets, memory)
    sock, temporary = socket.socket(fileno=connection), orders["temporary"]
    with own_folder(Path(temporary) if temporary is not None else None):
        worker = Worker(settings, load, sock, lifeline, WorkerReports(reports), meters, authentication)
        return worker.run(orders["refusal"], orders["training_finished"])


@contextlib.contextmanager
def _exit_with(lifeline: int) -> Iterator[None]:
    """Exit the process if the lifeline closes during the block, which may hang and must not outlive the server."""
    done = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        while not done.is_set():
            if poll.poll(WATCH_MILLISECONDS) and not done.is_set():
                os._exit(EXIT_DONE)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _refusal(load: Callable[[], WorkerPlan]) -> str:
    try:
        plan = load()
    except ConfigurationError as error:
        return str(error)
    missing = _device_error(plan.device)
    return str(device_error(plan.settings, missing)) if missing else ""
