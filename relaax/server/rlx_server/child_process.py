"""Child processes of the RLX server: start, inherited descriptors, and exit codes."""

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
NO_DESCRIPTOR = -1
"""Placeholder for a descriptor that a process does not receive."""
GROUP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that terminals and process managers send to the whole process group.

Only the server acts on them. Children ignore them. In a new process they are blocked until it ignores them.
"""


class Lifeline:
    """A pipe between server and workers. Its write end closes when the server stops its workers or dies."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def close(self) -> None:
        """Close the write end.

        In the server, this tells every worker to end. A forked worker closes its copy, so that only the server has one.
        """
        if self._write >= 0:
            os.close(self._write)
            self._write = -1


def command_of(module: str) -> tuple[str, ...]:
    """Return a command that calls the function `main` of `module`."""
    # Remove the working directory, which -c puts first on the path unless PYTHONSAFEPATH is set.
    program = f'import sys\nif sys.path[0] == "":\n    del sys.path[0]\nfrom {module} import main; main()\n'
    return sys.executable, "-c", program


def start_process(command: Sequence[str], descriptors: Sequence[int], environment: Mapping[str, str]) -> int:
    """Start a process with the import path of this one, and return its process id. Raises OSError.

    The process must call `inherited_descriptors` first. No other thread may start processes at the same time.
    """
    own = [descriptor for descriptor in descriptors if descriptor != NO_DESCRIPTOR]
    arguments = [*command, *map(str, descriptors)]
    environment = dict(environment) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        for descriptor in own:
            os.set_inheritable(descriptor, True)
        return os.posix_spawn(arguments[0], arguments, environment, setsigmask=GROUP_SIGNALS)
    finally:
        for descriptor in own:
            os.set_inheritable(descriptor, False)


def inherited_descriptors(count: int) -> list[int]:
    """Return the descriptors that `start_process` passed to this process, and ignore GROUP_SIGNALS from now on."""
    for number in GROUP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    given = [int(argument) for argument in sys.argv[-count:]]
    for descriptor in given:
        if descriptor != NO_DESCRIPTOR:
            os.set_inheritable(descriptor, False)  # not passed on to children
    return given


def fork(work: Callable[[], int | None], failure: str) -> int:
    """Run `work` in a forked process, and return its process id. Raises OSError."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        exit_with(work, failure)
    return pid


def exit_with(work: Callable[[], int | None], failure: str) -> NoReturn:
    """Exit this process with the exit code of `work`, without waiting for threads. An error is logged as `failure`."""
    code: int | None = EXIT_FAILED
    try:
        code = work()
    except BaseException:
        _log.exception(failure)
    finally:
        logging.shutdown()
        os._exit(code or EXIT_DONE)


def describe_exit(code: int) -> str:
    """Describe how a process ended whose exit code is not EXIT_DONE."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed, as logged above"
