"""The main function of forked and spawned workers, and the lifeline that ties them to their server."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

from relaax.configuration import RlxServerSection
from relaax.parameters.message_memory import share_one_arena
from relaax.server.rlx_server.child_process import GROUP_SIGNALS
from relaax.server.rlx_server.clients.authentication import OPEN, Authentication
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.worker_reports import WorkerReports
from relaax.server.rlx_server.workers.worker import Worker
from relaax.server.rlx_server.workers.worker_plan import WorkerPlan


class Lifeline:
    """A pipe whose other end closes when the server stops its workers or dies."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def let_go(self) -> None:
        """Close the server's end, in a forked worker: only the server may hold it."""
        os.close(self._write)

    def cut(self) -> None:
        """Tell every worker to end, in the server."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1


def run_worker(
    settings: RlxServerSection,
    load: Callable[[], WorkerPlan],
    sock: socket.socket,
    lifeline: int,
    reports: int,
    meters: Meters,
    refusal: str | None,
    training_finished: bool,
    authentication: Authentication = OPEN,
) -> int:
    """Serve the connection `sock` to its end (see `Worker`, also for `load`) and return the process's exit code.

    `lifeline`: the reading end of a Lifeline; `reports`: the worker's end of a line (see `WorkerReports`); `meters`:
    the server's.
    """
    signal.set_wakeup_fd(-1)
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # tells the server to reread a file
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    share_one_arena()
    return Worker(settings, load, sock, lifeline, WorkerReports(reports), meters, authentication).serve(
        refusal, training_finished
    )
