"""Send an RLX server's samples to the process that answers at its status port.

The server has one thread and must be able to fork, so what needs threads is a process of its own, fed through a pipe:
a line of JSON a second. Nothing here waits or raises: if the pipe is full, the rest of a line waits for the next
second, and newer samples are dropped meanwhile; a status process that has died is restarted.
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

from relaax.server.rlx_server.child_process import command_of, start
from relaax.server.security.tokens import without_tokens

_log = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
RESTART_SECONDS = 2.0
END_SECONDS = 2.0


class StatusLine:
    """The server's end. `sock`: the status port, listening. The sibling has it and one end of the pipe, no more."""

    def __init__(self, sock: socket.socket, log_level: str, log_format: str) -> None:
        self._sock = sock
        module = "relaax.server.rlx_server.listening.status_process"
        self._command = (*command_of(module), str(os.getpid()), log_level, log_format)
        self._pid = 0
        self._write = -1
        self._unsaid = b""
        self._due = self._start_at = 0.0
        self._start()

    @property
    def due(self) -> bool:
        """Whether it is time for another sample."""
        return time.monotonic() >= self._due

    def tell(self, sample: Mapping[str, Any]) -> None:
        """Send the newest figures."""
        now = time.monotonic()
        self._due = now + SAMPLE_SECONDS
        if self._write < 0 and now >= self._start_at:
            self._start()
        if self._write < 0:
            return
        self._unsaid = self._unsaid or json.dumps(sample).encode() + b"\n"
        try:
            self._unsaid = self._unsaid[os.write(self._write, self._unsaid) :]
        except BlockingIOError:
            pass  # it is slow, or stopped: the next one will do
        except OSError:
            _log.error("the process of the status port has died and is started again")
            self._hang_up()
            self._bury(os.WNOHANG)

    def close_in_child(self) -> None:
        """In a worker that was forked: the server alone holds the line."""
        self._sock.close()
        if self._write >= 0:
            os.close(self._write)

    def stop(self) -> None:
        """Close the status port: the sibling ends when the line does."""
        self._sock.close()
        self._hang_up()
        deadline = time.monotonic() + END_SECONDS
        while self._pid and time.monotonic() < deadline:
            self._bury(os.WNOHANG)
            time.sleep(0.01)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._bury(0)

    def _start(self) -> None:
        self._start_at = time.monotonic() + RESTART_SECONDS
        read, write = os.pipe()
        try:
            self._pid = start(self._command, [self._sock.fileno(), read], without_tokens(os.environ))
        except OSError as error:
            _log.error("the process of the status port cannot be started (%s); trying again", error)
            os.close(write)
        else:
            os.set_blocking(write, False)
            self._write = write
        finally:
            os.close(read)

    def _hang_up(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
            self._unsaid = b""

    def _bury(self, options: int) -> None:
        try:
            pid, _ = os.waitpid(self._pid, options)
        except ChildProcessError:  # whoever waits for all children has had it
            pid = self._pid
        if pid:
            self._pid = 0
