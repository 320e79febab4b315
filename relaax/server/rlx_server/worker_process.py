"""What a worker process does, however it was started, and the line that ties it to its server."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

from relaax.configuration import RlxServerSection
from relaax.parameters.message_memory import share_one_arena
from relaax.server.rlx_server.authentication import OPEN, Authentication
from relaax.server.rlx_server.meters import Meters
from relaax.server.rlx_server.worker import Worker, WorkerPlan
from relaax.server.rlx_server.worker_reports import WorkerReports


class Lifeline:
    """A pipe whose other end closes when the server wants its workers to end, or has died."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def let_go(self) -> None:
        """In a worker that was forked: the server alone holds the other end."""
        os.close(self._write)

    def cut(self) -> None:
        """In the server: tell every worker to end."""
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
    """Serve the connection `sock` to its end (see `Worker`, also for `load`); the process's exit code.

    `lifeline` is the reading end of one; `reports` the worker's end of a line (see `WorkerReports`); `meters` are the
    server's.
    """
    # Ctrl-C reaches the whole process group: the server decides, and tells its workers by the lifeline.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # to the server it means that it is to read a file again
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    share_one_arena()
    return Worker(settings, load, sock, lifeline, WorkerReports(reports), meters, authentication).serve(
        refusal, training_finished
    )
