"""Starting workers as fresh processes, for systems where forking is unsafe: slower, and the same from outside.

A worker inherits its connection, its lifeline and its line for reports, and reads its orders as JSON from a file
without a name: no secret of the configuration shows in a process list, and the server waits for no reader. The server
itself loads neither TensorFlow nor the algorithm.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.server.anonymous_file import anonymous_file
from relaax.server.rlx_server.authentication import OPEN, Authentication
from relaax.server.rlx_server.child_process import NONE, inheritable, program_of
from relaax.server.rlx_server.exit_codes import EXIT_DONE
from relaax.server.rlx_server.meters import Meters
from relaax.server.rlx_server.temporary_folders import WorkerFolders
from relaax.server.rlx_server.worker_process import Lifeline
from relaax.server.rlx_server.worker_reports import report_line

PROGRAM = program_of("relaax.server.rlx_server.spawned_worker")
COMMAND = (sys.executable, "-c", PROGRAM)


class SpawnSpawner:
    """Spawns workers. One process of the kind is started first, to look whether they can do their work at all.

    Raises ConfigurationError where they could not.
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
        self._authentication = authentication
        self._meters = meters
        self._orders = {
            "settings": settings.model_dump(mode="json"),
            "section": dict(section),
            "path": path,
            "folder": str(folder),
            "meters": [meters.rows, meters.buckets],
        }
        self._folders = folders
        self._lifeline = Lifeline()
        self._look()

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]:
        """Start a worker for `sock`, which inherits nothing but what it is given.

        Returns its process id and a descriptor that becomes readable when it is known whether its client is let in.
        Raises OSError.
        """
        more = {
            "refusal": refusal,
            "training_finished": training_finished,
            "temporary": self._folders.made(),
            "names": self._authentication.names,  # by digests: what is secret is in no orders
        }
        return self._start(sock.fileno(), more)

    def stop_workers(self) -> None:
        """Tell every worker to end."""
        self._lifeline.cut()

    def _look(self) -> None:
        pid, answer = self._start(NONE, {})
        os.set_blocking(answer, True)
        try:
            with os.fdopen(answer, encoding="utf-8") as said:
                refusal = said.read()
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except BaseException:  # an interrupt: what hangs while it is imported is not left behind
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise
        if refusal:
            raise ConfigurationError(refusal)
        if code != EXIT_DONE:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed, as logged above"
            raise ConfigurationError(f"workers cannot start: the first process, which was to load the algorithm, {how}")

    def _start(self, connection: int, more: Mapping[str, Any]) -> tuple[int, int]:
        """Process id, and the server's end of its reports. Raises OSError, with nothing left open."""
        with contextlib.ExitStack() as failed, contextlib.ExitStack() as its_own:
            report_read, report_write = report_line()
            failed.callback(os.close, report_read)
            its_own.callback(os.close, report_write)
            orders = its_own.enter_context(anonymous_file())
            orders.write(json.dumps(self._orders | dict(more), default=str).encode())
            orders.seek(0)
            given = [connection, self._lifeline.read, report_write, self._meters.descriptor, orders.fileno()]
            arguments = [*COMMAND, *map(str, given)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            sys.stdout.flush()
            sys.stderr.flush()
            with inheritable(given):
                # Ctrl-C reaches the whole process group: held back until the worker is ready to ignore it.
                pid = os.posix_spawn(arguments[0], arguments, environment, setsigmask=[signal.SIGINT])
            os.set_blocking(report_read, False)
            failed.pop_all()
            return pid, report_read
