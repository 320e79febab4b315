"""How worker processes are started: forked from the server, or as new processes where forking is unsafe.

A forked worker shares what its server has imported. A spawned one inherits its connection, its lifeline and its line
for reports, and reads its orders as JSON from an unnamed file, so that no secret of the configuration shows in a
process list and the server waits for no reader; the server itself loads neither TensorFlow nor the algorithm.
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
from pathlib import Path
from typing import Any

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.files import anonymous_file
from relaax.server.command.hardware import device_error
from relaax.server.command.logs import configure_logging
from relaax.server.rlx_server.child_process import (
    EXIT_DONE,
    NONE,
    Lifeline,
    command_of,
    end_with,
    fork,
    how_ended,
    inherited,
    start,
)
from relaax.server.rlx_server.clients.accounts import OPEN, Authentication, read_authentication
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.temporary_folders import WorkerFolders, own_folder
from relaax.server.rlx_server.worker_reports import WorkerReports, report_line
from relaax.server.rlx_server.workers.plan import WorkerPlan, plan_workers
from relaax.server.rlx_server.workers.worker import Worker

COMMAND = command_of("relaax.server.rlx_server.workers.spawners")
WATCH_MILLISECONDS = 500
_TASKS = Path("/proc/self/task")
_LEADS_TO_KERNELS = {
    "relaax.nn.host.engine",
    "relaax.nn.host.network",
    "relaax.nn.distributions",
    "relaax.algorithm_base.returns",
}
"""Modules of algorithms that use the host's kernels."""


class UnsafeFork(RuntimeError):
    """The server's process has more than one thread, so a forked worker could hang."""


class _Spawner:
    def __init__(self, folders: WorkerFolders, meters: Meters, authentication: Authentication) -> None:
        self._folders = folders
        self._meters = meters
        self._authentication = authentication
        self._lifeline = Lifeline()

    def stop_workers(self) -> None:
        """Tell every worker to end."""
        self._lifeline.cut()


class ForkSpawner(_Spawner):
    """Fork workers: the parent has imported everything and run nothing, so a child is ready in a quarter second.

    Raises UnsafeFork if the process has more than one thread.
    """

    def __init__(
        self, plan: WorkerPlan, folders: WorkerFolders, meters: Meters, authentication: Authentication = OPEN
    ) -> None:
        _import_for_workers()
        _require_one_thread(plan.algorithm.source)
        super().__init__(folders, meters, authentication)
        self._plan = plan
        gc.collect()
        gc.freeze()  # existing objects are never collected, so that children do not copy their pages

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]:
        """Start a worker for `sock`.

        Returns its process id and a descriptor that becomes readable when its client has been admitted or refused.
        Raises UnsafeFork and OSError.
        """
        plan = self._plan
        _require_one_thread(plan.algorithm.source)
        folder = self._folders.made()
        report_read, report_write = report_line()

        def work() -> int:
            os.close(report_read)
            self._lifeline.cut()
            close_in_child()
            with own_folder(folder):
                reports, end = WorkerReports(report_write), self._lifeline.read
                worker = Worker(plan.settings, lambda: plan, sock, end, reports, self._meters, self._authentication)
                return worker.run(refusal, training_finished)

        try:
            pid = fork(work, "the worker failed")
        except OSError:
            os.close(report_read)
            raise
        finally:
            os.close(report_write)
        os.set_blocking(report_read, False)
        return pid, report_read


def thread_count() -> int:
    """Return the number of threads of this process, including native threads if the system lists them."""
    return len(list(_TASKS.iterdir())) if _TASKS.is_dir() else threading.active_count()


def _require_one_thread(algorithm: Path) -> None:
    threads = thread_count()
    if threads != 1:
        raise UnsafeFork(
            f"the process has {threads} threads and cannot fork workers safely; {algorithm} must not run an operation "
            "of TensorFlow or start a thread while it is imported: leave that to the agent's constructor"
        )


def _import_for_workers() -> None:
    """Import what workers will need, so that all share one copy. None of it is run."""
    import numpy.random  # noqa: F401

    import relaax.parameters.client  # noqa: F401

    if not _LEADS_TO_KERNELS.isdisjoint(sys.modules):
        from relaax.nn.host import convolution, dense, lstm, products, recurrence, softmax

        for kernels in (convolution, dense, lstm, products, recurrence, softmax):
            kernels.compile_kernels()  # 40 MB, numba included


def device_refusal(device: str) -> str | None:
    """Return why workers cannot compute on `device`, in one sentence; None if they can.

    Listing GPUs starts their driver. A process that has done so cannot fork workers that use them, so a child looks.
    """
    from relaax.nn.devices import CPU

    if device == CPU:
        return None
    read, write = os.pipe()
    pid = fork(lambda: _look_for(device, write), f"looking for {device} failed")
    os.close(write)
    sentence, how = _first_answer(pid, read)
    if how:
        return f"{device} was asked for, but the process that looked for it {how}: use cpu, or repair the GPU's driver"
    return sentence or None


def _look_for(device: str, answer: int) -> None:
    os.write(answer, _missing(device).encode())


def _missing(device: str) -> str:
    from relaax.nn.devices import NoSuchDevice, use_device

    try:
        use_device(device)
    except NoSuchDevice as refusal:
        return str(refusal)
    return ""


def _first_answer(pid: int, answer: int) -> tuple[str, str]:
    """Return what a process says at `answer` before it ends, and how it ended, which is empty for EXIT_DONE."""
    try:
        with os.fdopen(answer, encoding="utf-8") as said:
            sentence = said.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:  # an interrupt: kill a process that hangs in an import
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    return sentence, "" if code == EXIT_DONE else how_ended(code)


class SpawnSpawner(_Spawner):
    """Spawn workers. A first process checks whether workers can work at all.

    Raises ConfigurationError if they cannot.
    """

    def __init__(
        self,
        settings: RlxServerSection,
        section: Mapping[str, Any],
        path: str,
        folder: Path,
        folders: WorkerFolders,
        meters: Meters,
        authentication: Authentication = OPEN,
    ) -> None:
        super().__init__(folders, meters, authentication)
        self._orders = {
            "settings": settings.model_dump(mode="json"),
            "section": dict(section),
            "path": path,
            "folder": str(folder),
            "meters": [meters.rows, meters.buckets],
        }
        self._look()

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]:
        """Start a worker for `sock`, which inherits only the descriptors it is given.

        Returns as `ForkSpawner.spawn` does. Raises OSError.
        """
        more = {
            "refusal": refusal,
            "training_finished": training_finished,
            "temporary": self._folders.made(),
            "names": self._authentication.names,  # by digests: orders contain no secrets
        }
        return self._start(sock.fileno(), more)

    def _look(self) -> None:
        pid, answer = self._start(NONE, {})
        os.set_blocking(answer, True)
        refusal, how = _first_answer(pid, answer)
        if refusal:
            raise ConfigurationError(refusal)
        if how:
            raise ConfigurationError(f"workers cannot start: the first process, which loads the algorithm, {how}")

    def _start(self, connection: int, more: Mapping[str, Any]) -> tuple[int, int]:
        """Return process id and the server's end of the report line. Raises OSError, with all descriptors closed."""
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as its_own:
            report_read, report_write = report_line()
            failed.callback(os.close, report_read)
            its_own.callback(os.close, report_write)
            orders = its_own.enter_context(anonymous_file())
            orders.write(json.dumps(self._orders | dict(more), default=str).encode())
            orders.seek(0)
            given = [connection, self._lifeline.read, report_write, self._meters.descriptor, orders.fileno()]
            sys.stdout.flush()
            sys.stderr.flush()
            pid = start(COMMAND, given, os.environ)
            os.set_blocking(report_read, False)
            failed.pop_all()
            return pid, report_read


def main() -> None:
    """Run a spawned worker. Descriptors: connection (or NONE), lifeline, reports, meters, orders."""
    given = inherited(5)
    end_with(lambda: _follow(*given), "the worker failed")


def _follow(connection: int, lifeline: int, reports: int, memory: int, orders_file: int) -> int:
    with os.fdopen(orders_file, encoding="utf-8") as written:
        orders = json.load(written)
    settings = RlxServerSection.model_validate(orders["settings"])
    configure_logging(settings.log_level, settings.log_format)

    def load() -> WorkerPlan:
        with _ending_with(lifeline):
            return plan_workers(settings, orders["section"], orders["path"], Path(orders["folder"]))

    if connection == NONE:
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
def _ending_with(lifeline: int) -> Iterator[None]:
    """End the process if the lifeline closes during the block, which may hang and must not outlive the server."""
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
    """Return why workers could not work, in one sentence; empty if they could."""
    try:
        plan = load()
    except ConfigurationError as error:
        return str(error)
    missing = _missing(plan.device)
    return str(device_error(plan.settings, missing)) if missing else ""
