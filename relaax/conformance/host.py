"""Runs of a client's command against a server that follows a script."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from relaax.conformance.client_session import ClientSession, ScriptNotApplicable
from relaax.conformance.wire import ReceiveTimeout, StreamEnded
from relaax.rlx.errors import ProtocolError

Script = Callable[[ClientSession], None]

MOST_CONNECTIONS = 6
TICK_SECONDS = 0.02


@dataclass
class ClientRun:
    """The record of one run of a client. `exit_code`: None if it was killed. `last_error_line`: last line of stderr."""

    sessions: list[ClientSession] = field(default_factory=list)
    exit_code: int | None = None
    last_error_line: str = ""

    @property
    def end(self) -> str:
        """The end of the client, as a clause of a sentence."""
        if self.exit_code is None:
            return "it did not end"
        return f"it ended with exit code {self.exit_code}" + (
            f" ({self.last_error_line})" if self.last_error_line else ""
        )


def run_client(command: list[str], script: Script, deadline: float, quiet: float) -> ClientRun:
    """Run the command until it ends or has no connection for `quiet` seconds. `{address}` in it is replaced.

    `deadline`: seconds to wait for the first connection and for each message.
    Raises OSError if the command cannot be started.
    """
    run = ClientRun()
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryFile() as words:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        started = [part.replace("{address}", address) for part in command]
        process = subprocess.Popen(
            started, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=words, start_new_session=True
        )
        threads: list[threading.Thread] = []
        try:
            _accept(run, process, listener, script, threads, deadline, quiet)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # the command and its child processes
            process.wait()
            for session in run.sessions:
                session.stream.end()
            for thread in threads:
                thread.join(deadline)
            for session in run.sessions:
                session.stream.close()
        words.seek(0)
        lines = words.read().decode(errors="replace").strip().splitlines()
    run.last_error_line = lines[-1].strip()[:200] if lines else ""
    return run


def _accept(
    run: ClientRun,
    process: subprocess.Popen[bytes],
    listener: socket.socket,
    script: Script,
    threads: list[threading.Thread],
    deadline: float,
    quiet: float,
) -> None:
    listener.settimeout(TICK_SECONDS)
    last = time.monotonic()  # when a connection was last open
    started = last
    while True:
        ended = process.poll()  # polled before accept: connections of a process that has ended are already in the queue
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            pass
        else:
            session = ClientSession(sock, len(run.sessions), deadline)
            run.sessions.append(session)
            threads.append(threading.Thread(target=_run_script, args=(script, session), daemon=True))
            threads[-1].start()
            continue
        now = time.monotonic()
        if any(thread.is_alive() for thread in threads):
            last = now
        elif ended is not None:
            run.exit_code = ended
            return
        is_quiet = now - last > (quiet if run.sessions else deadline)
        if is_quiet or len(run.sessions) > MOST_CONNECTIONS or now - started > 6 * deadline + 60:
            return


def _run_script(script: Script, session: ClientSession) -> None:
    try:
        script(session)
        session.complete = True
    except StreamEnded as end:
        session.closed = True
        session.end_reason = (
            "it sent bye" if session.received and type(session.received[-1]).__name__ == "Bye" else f"{end}"
        )
    except ReceiveTimeout as timeout:
        session.end_reason = str(timeout)
    except ScriptNotApplicable as reason:
        session.not_applicable = str(reason)
    except ProtocolError as error:
        session.mistake = error
        session.end_reason = f"it broke the protocol: {error.code.name}, {error.message}"
    session.stream.end()
