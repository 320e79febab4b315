"""Starting workers as new processes, for systems where forking is unsafe: slower, but otherwise equivalent.

A worker inherits its connection, its lifeline and its line for reports, and reads its orders as JSON from an unnamed
file, so that no secret of the configuration shows in a process list and the server waits for no reader. The server
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
from relaax.server.rlx_server.child_process import GROUP_SIGNALS, NONE, inheritable, program_of
from relaax.server.rlx_server.clients.authentication import OPEN, Authentication
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.exit_codes import EXIT_DONE
from relaax.server.rlx_server.temporary_folders import WorkerFolders
from relaax.server.rlx_server.worker_reports import report_line
from relaax.server.rlx_server.workers.worker_process import Lifeline

PROGRAM = program_of("relaax.server.rlx_server.workers.spawned_worker")
COMMAND = (sys.executable, "-c", PROGRAM)


class SpawnSpawner:
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
        """Start a worker for `sock`, which inherits only the descriptors it is given.

        Returns its process id and a descriptor that becomes readable when its client has been admitted or refused.
        Raises OSError.
        """
        more = {
            "refusal": refusal,
            "training_finished": training_finished,
            "temporary": self._folders.made(),
            "names": self._authentication.names,  # by digests: orders contain no secrets
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
        except BaseException:  # an interrupt: kill a process that hangs in an import
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise
        if refusal:
            raise ConfigurationError(refusal)
        if code != EXIT_DONE:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed, as logged above"
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
            arguments = [*COMMAND, *map(str, given)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            sys.stdout.flush()
            sys.stderr.flush()
            with inheritable(given):
                pid = os.posix_spawn(arguments[0], arguments, environment, setsigmask=GROUP_SIGNALS)
            os.set_blocking(report_read, False)
            failed.pop_all()
            return pid, report_read
