"""The RLX server's side of its inference process: start, restart and end."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable

from relaax.server.rlx_server.child_process import Lifeline, fork
from relaax.server.rlx_server.inference.exchange import new_socket
from relaax.server.rlx_server.inference.process import InferenceLoop, run
from relaax.server.rlx_server.workers.plan import WorkerPlan

_log = logging.getLogger(__name__)

RESTART_SECONDS = 2.0
"""Minimum time between two starts."""
END_SECONDS = 3.0
_BACKLOG = 1024


class InferenceKeeper:
    """The inference process of a server: forked like a worker, and restarted if it ends.

    The server owns the socket, so that workers can connect while the process restarts. It has no name in the file
    system, and the process serves only workers of the same user.
    """

    def __init__(self, plan: WorkerPlan, lifeline: Lifeline) -> None:
        """Create the socket. The process starts with the first `maintain`."""
        self._plan, self._lifeline = plan, lifeline
        self._listener = new_socket()
        self._listener.bind("")  # the kernel chooses an abstract name
        self._listener.listen(_BACKLOG)
        self.address: bytes = self._listener.getsockname()
        """The name of the socket, for workers."""
        self._pid = 0
        self._alive = -1  # read end of a pipe whose write end only the process has
        self._start_at = 0.0

    def maintain(self, close_in_child: Callable[[], None]) -> None:
        """Start the process if it does not run. `close_in_child` closes the server's descriptors in the process."""
        if self._pid and self._has_ended():
            _log.error("the inference process %d ended: restarting it; workers wait", self._pid)
            self._reap(0)
        if not self._pid and time.monotonic() >= self._start_at:
            self._start(close_in_child)

    def close_in_child(self) -> None:
        """Close the descriptors in a forked worker."""
        self._listener.close()
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    def close(self) -> None:
        """Wait for the process to end, which the closed lifeline has told it to. Kill it if it does not."""
        self._listener.close()
        deadline = time.monotonic() + END_SECONDS
        while self._pid and not self._has_ended() and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                if not self._has_ended():
                    os.kill(self._pid, signal.SIGKILL)
            self._reap(0)

    def _start(self, close_in_child: Callable[[], None]) -> None:
        self._start_at = time.monotonic() + RESTART_SECONDS
        alive, held = os.pipe()
        plan = self._plan

        def work() -> int:
            os.close(alive)
            self._lifeline.close()
            close_in_child()
            loop = InferenceLoop(self._listener, self._lifeline.read, plan.make_client, plan.settings.bind)
            return run(loop.serve, plan.device)

        try:
            self._pid = fork(work, "the inference process failed")
        except OSError as error:
            _log.error("starting the inference process failed (%s); retrying in %g s", error, RESTART_SECONDS)
            os.close(alive)
        else:
            self._alive = alive
            _log.info("started the inference process %d on device %s", self._pid, plan.device)
        finally:
            os.close(held)

    def _has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._alive, 0)  # only the end of the pipe
        return bool(poll.poll(0))

    def _reap(self, options: int) -> None:
        with contextlib.suppress(ChildProcessError):  # Children.reap, which waits for any child, has reaped it
            os.waitpid(self._pid, options)
        os.close(self._alive)
        self._pid, self._alive = 0, -1
