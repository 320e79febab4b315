"""Running a client's command against a server that does what a script says."""

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

from relaax.conformance.client_talk import CannotSay, ClientTalk
from relaax.conformance.wire import Over, Silent
from relaax.rlx.errors import ProtocolError

Script = Callable[[ClientTalk], None]

MOST_CONNECTIONS = 6
TICK_SECONDS = 0.02


@dataclass
class ClientRun:
    """What a client did. `code`: its exit code, None if it did not end by itself."""

    talks: list[ClientTalk] = field(default_factory=list)
    code: int | None = None
    last_words: str = ""

    @property
    def end(self) -> str:
        """How the client ended, as part of a sentence."""
        if self.code is None:
            return "it did not end"
        return f"it ended with exit code {self.code}" + (f" ({self.last_words})" if self.last_words else "")


def run_client(command: list[str], script: Script, deadline: float, quiet: float) -> ClientRun:
    """Run the command until it ends or is silent for `quiet` seconds. `{address}` in it is replaced.

    `deadline`: seconds to wait for whatever is due. Raises OSError if the command cannot be started.
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
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
            process.wait()
            for talk in run.talks:
                talk.line.end()
            for thread in threads:
                thread.join(deadline)
            for talk in run.talks:
                talk.line.close()
        words.seek(0)
        lines = words.read().decode(errors="replace").strip().splitlines()
    run.last_words = lines[-1].strip()[:200] if lines else ""
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
    last = time.monotonic()  # that anything was heard or under way
    started = last
    while True:
        ended = process.poll()  # before the look: what it did is in the queue by now
        try:
            sock, _ = listener.accept()
        except TimeoutError:
            pass
        else:
            talk = ClientTalk(sock, len(run.talks), deadline)
            run.talks.append(talk)
            threads.append(threading.Thread(target=_talk, args=(script, talk), daemon=True))
            threads[-1].start()
            continue
        now = time.monotonic()
        if any(thread.is_alive() for thread in threads):
            last = now
        elif ended is not None:
            run.code = ended
            return
        is_quiet = now - last > (quiet if run.talks else deadline)
        if is_quiet or len(run.talks) > MOST_CONNECTIONS or now - started > 6 * deadline + 60:
            return


def _talk(script: Script, talk: ClientTalk) -> None:
    try:
        script(talk)
        talk.complete = True
    except Over as over:
        talk.closed = True
        talk.note = "it said bye" if talk.heard and type(talk.heard[-1]).__name__ == "Bye" else f"{over}"
    except Silent as silent:
        talk.note = str(silent)
    except CannotSay as reason:
        talk.cannot = str(reason)
    except ProtocolError as error:
        talk.mistake = error
        talk.note = f"it broke the protocol: {error.code.name}, {error.message}"
    talk.line.end()
