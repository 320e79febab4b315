"""Starting workers as fresh processes, for systems where forking is unsafe: slower, and the same from outside.

A worker gets its connection, its lifeline and its news by inheritance, and its orders as JSON through a pipe: what is
secret in a configuration stands in no process list. The server itself loads neither TensorFlow nor the algorithm.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.server.rlx_server.exit_codes import EXIT_DONE
from relaax.server.rlx_server.running import Lifeline

# Without the working directory, which -c would put before what is installed.
PROGRAM = "import sys; del sys.path[0]; from relaax.server.rlx_server.spawned import main; main()"
COMMAND = (sys.executable, "-c", PROGRAM)
NONE = -1
"""Stands for a descriptor that a process is not given."""


class SpawnSpawner:
    """Spawns workers. One process of the kind is started first, to look whether they can do their work at all.

    Raises ConfigurationError where they could not.
    """

    def __init__(self, settings: RlxServerSection, section: Mapping[str, Any], path: str, folder: Path) -> None:
        self._orders = {
            "settings": settings.model_dump(mode="json"),
            "section": dict(section),
            "path": path,
            "folder": str(folder),
        }
        self._lifeline = Lifeline()
        os.set_inheritable(self._lifeline.read, True)
        self._look()

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]:
        """Start a worker for `sock`, which inherits nothing but what it is given.

        Returns its process id and a descriptor that becomes readable when its client was let in or it has ended.
        Raises OSError.
        """
        return self._start(sock.fileno(), {"refusal": refusal, "training_finished": training_finished})

    def stop_workers(self) -> None:
        """Tell every worker to end."""
        self._lifeline.cut()

    def _look(self) -> None:
        pid, answer = self._start(NONE, {})
        os.set_blocking(answer, True)
        with os.fdopen(answer, encoding="utf-8") as said:
            refusal = said.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if refusal:
            raise ConfigurationError(refusal)
        if code != EXIT_DONE:
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed, as logged above"
            raise ConfigurationError(f"workers cannot start: the first process, which was to load the algorithm, {how}")

    def _start(self, connection: int, more: Mapping[str, Any]) -> tuple[int, int]:
        """Process id, and the reading end of its news."""
        news_read, news_write = os.pipe()
        orders_read, orders_write = os.pipe()
        given = [connection, news_write, orders_read]
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            with _inheritable(given):
                arguments = [*COMMAND, *map(str, [connection, self._lifeline.read, news_write, orders_read])]
                environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
                # Ctrl-C reaches the whole process group: held back until the worker is ready to ignore it.
                pid = os.posix_spawn(arguments[0], arguments, environment, setsigmask=[signal.SIGINT])
        except OSError:
            os.close(news_read)
            os.close(orders_write)
            raise
        finally:
            os.close(news_write)
            os.close(orders_read)
        with contextlib.suppress(BrokenPipeError), os.fdopen(orders_write, "w", encoding="utf-8") as orders:
            json.dump(self._orders | dict(more), orders, default=str)
        os.set_blocking(news_read, False)
        return pid, news_read


@contextlib.contextmanager
def _inheritable(descriptors: list[int]) -> Iterator[None]:
    """Processes started meanwhile inherit these. Nothing else of this process's starts any."""
    own = [descriptor for descriptor in descriptors if descriptor != NONE]
    for descriptor in own:
        os.set_inheritable(descriptor, True)
    try:
        yield
    finally:
        for descriptor in own:
            os.set_inheritable(descriptor, False)
