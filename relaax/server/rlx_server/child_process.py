"""Child processes of the server: how they start, what they inherit, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

_log = logging.getLogger(__name__)

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_TRAINING_FINISHED = 10
NONE = -1
"""Placeholder for a descriptor that a process is not given."""
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that terminals and process managers send to the whole process group. Only the server acts on them: a child
ignores them, and a new process has them blocked until it does.
"""


class Lifeline:
    """A pipe whose other end closes when the server stops its workers or dies."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def cut(self) -> None:
        """Close the server's end: it tells every worker to end, and in a forked worker leaves it to the server."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1


def command_of(module: str) -> tuple[str, ...]:
    """Return a command that calls `main` of a module."""
    # Remove the working directory, which -c puts first on the path unless PYTHONSAFEPATH is set.
    program = f'import sys\nif sys.path[0] == "":\n    del sys.path[0]\nfrom {module} import main; main()\n'
    return sys.executable, "-c", program


def start(command: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str]) -> int:
    """Start a process that imports from where this one does, and return its id; it calls `inherited` first.

    No other thread may start processes meanwhile. Raises OSError.
    """
    own = [descriptor for descriptor in descriptors if descriptor != NONE]
    arguments = [*command, *map(str, descriptors)]
    environment = dict(environment) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        for descriptor in own:
            os.set_inheritable(descriptor, True)
        return os.posix_spawn(arguments[0], arguments, environment, setsigmask=GROUP_SIGNALS)
    finally:
        for descriptor in own:
            os.set_inheritable(descriptor, False)


def inherited(count: int) -> list[int]:
    """Return the descriptors that `start` gave to this process, which ignores the signals of its group from here on."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    given = [int(argument) for argument in sys.argv[-count:]]
    for descriptor in given:
        if descriptor != NONE:
            os.set_inheritable(descriptor, False)  # not to be passed on
    return given


def fork(work: Callable[[], int | None], failure: str) -> int:
    """Run `work` in a forked process, and return its id. Raises OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        end_with(work, failure)
    return pid


def end_with(work: Callable[[], int | None], failure: str) -> NoReturn:
    """End this process with the exit code of `work`, EXIT_DONE for None; an error is logged below `failure`.

    Threads of libraries are not waited for.
    """
    code: int | None = EXIT_FAILED
    try:
        code = work()
    except BaseException:
        _log.exception(failure)
    finally:
        logging.shutdown()
        os._exit(code or EXIT_DONE)


def how_ended(code: int) -> str:
    """Return how a process ended that has not returned EXIT_DONE."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed, as logged above"
