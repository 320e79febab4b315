"""Starting workers by forking the server's process: import, then fork, then run."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from relaax.server.rlx_server.clients.authentication import OPEN, Authentication
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.exit_codes import EXIT_FAILED
from relaax.server.rlx_server.temporary_folders import WorkerFolders, own_folder
from relaax.server.rlx_server.worker_reports import report_line
from relaax.server.rlx_server.workers.worker_plan import WorkerPlan
from relaax.server.rlx_server.workers.worker_process import Lifeline, run_worker

_log = logging.getLogger(__name__)

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


class ForkSpawner:
    """Fork workers: the parent has imported everything and run nothing, so a child is ready in a quarter second.

    Raises UnsafeFork if the process has more than one thread.
    """

    def __init__(
        self, plan: WorkerPlan, folders: WorkerFolders, meters: Meters, authentication: Authentication = OPEN
    ) -> None:
        _import_for_workers()
        _require_one_thread(plan.algorithm.source)
        self._plan = plan
        self._authentication = authentication
        self._meters = meters
        self._folders = folders
        self._lifeline = Lifeline()
        gc.collect()
        gc.freeze()  # existing objects are never collected, so that children do not copy their pages

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]:
        """Start a worker for `sock`.

        Returns its process id and a descriptor that becomes readable when its client has been admitted or refused.
        Raises UnsafeFork and OSError.
        """
        _require_one_thread(self._plan.algorithm.source)
        folder = self._folders.made()
        report_read, report_write = report_line()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError:
            os.close(report_read)
            os.close(report_write)
            raise
        if pid == 0:
            code = EXIT_FAILED
            try:
                os.close(report_read)
                self._lifeline.let_go()
                close_in_child()
                with own_folder(folder):
                    code = run_worker(
                        self._plan.settings,
                        lambda: self._plan,
                        sock,
                        self._lifeline.read,
                        report_write,
                        self._meters,
                        refusal,
                        training_finished,
                        self._authentication,
                    )
            except BaseException:
                _log.exception("the worker failed")
            finally:
                logging.shutdown()
                os._exit(code)
        os.close(report_write)
        os.set_blocking(report_read, False)
        return pid, report_read

    def stop_workers(self) -> None:
        """Tell every worker to end."""
        self._lifeline.cut()
