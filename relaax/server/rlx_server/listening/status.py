"""The server's side of its status process, which serves the status port.

The server must be able to fork, so it has one thread. The status server needs threads, so it is a separate process. It
receives a sample as a line of JSON through a pipe, once a second. Sending a sample never waits: if the pipe is full,
the rest of the line is sent a second later, and newer samples are dropped until then. If the status process dies, it is
restarted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from typing import Any

from relaax.server.rlx_server.child_process import command_of, start_process
from relaax.server.security.tokens import without_tokens

_log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
RESTART_SECONDS = 2.0
END_SECONDS = 2.0


class StatusPipe:
    """The write end of the pipe to the status process.

    `sock`: the listening socket of the status port. The status process inherits only this and the pipe's read end.
    """

    def __init__(self, sock: socket.socket, log_level: str, log_format: str) -> None:
        self._sock = sock
        module = "relaax.server.rlx_server.listening.status_process"
        self._command = (*command_of(module), str(os.getpid()), log_level, log_format)
        self._pid = 0
        self._write = -1
        self._unsent = b""
        self._due = self._start_at = 0.0
        self._start()

    @property
    def due(self) -> bool:
        """Whether the next sample should be sent."""
        return time.monotonic() >= self._due

    def send(self, sample: Mapping[str, Any]) -> None:
        """Send a sample, unless an earlier one is still pending."""
        now = time.monotonic()
        self._due = now + SAMPLE_SECONDS
        if self._write < 0 and now >= self._start_at:
            self._start()
        if self._write < 0:
            return
        self._unsent = self._unsent or json.dumps(sample).encode() + b"\n"
        try:
            self._unsent = self._unsent[os.write(self._write, self._unsent) :]
        except BlockingIOError:
            pass  # it is slow or stopped: the rest is sent with the next call
        except OSError:
            _log.error("the status process died: restarting it")
            self._close_pipe()
            self._reap(os.WNOHANG)

    def close_in_child(self) -> None:
        """Close the descriptors in a forked worker, so that only the server has them."""
        self._sock.close()
        if self._write >= 0:
            os.close(self._write)

    def stop(self) -> None:
        """Close the status port and the pipe. The status process ends at the end of the pipe."""
        self._sock.close()
        self._close_pipe()
        deadline = time.monotonic() + END_SECONDS
        while self._pid and time.monotonic() < deadline:
            self._reap(os.WNOHANG)
            time.sleep(0.01)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap(0)

    def _start(self) -> None:
        self._start_at = time.monotonic() + RESTART_SECONDS
        read, write = os.pipe()
        try:
            self._pid = start_process(self._command, [self._sock.fileno(), read], without_tokens(os.environ))
        except OSError as error:
            _log.error("starting the status process failed (%s); retrying in %g s", error, RESTART_SECONDS)
            os.close(write)
        else:
            os.set_blocking(write, False)
            self._write = write
        finally:
            os.close(read)

    def _close_pipe(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
            self._unsent = b""

    def _reap(self, options: int) -> None:
        try:
            pid, _ = os.waitpid(self._pid, options)
        except ChildProcessError:  # Children.reap, which waits for any child, has reaped it
            pid = self._pid
        if pid:
            self._pid = 0
