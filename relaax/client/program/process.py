"""The process of a program: connections in threads, signals, and closing of environments."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from relaax.client.connection.failure import Failure
from relaax.client.program.checked_env import CheckedEnv, is_a
from relaax.client.program.summary import RunSummary, ending

logger = logging.getLogger("relaax.client")

_REPEAT_SECONDS = 2.0
_Result = TypeVar("_Result")


def terminate(number: int, frame: object) -> NoReturn:
    """Exit with code 0, as a handler of SIGTERM."""
    if hasattr(signal, "setitimer"):
        # Repeated, because a callback of a C library (such as cffi in physics engines) may suppress the exception.
        signal.signal(signal.SIGALRM, terminate)
        signal.setitimer(signal.ITIMER_REAL, _REPEAT_SECONDS)
    sys.exit(0)  # an exception, so that open resources are closed


def cancel_repetition() -> None:
    """Cancel the repetition of `terminate`, which would kill the process while the interpreter exits."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


class _ChildEnv(CheckedEnv):
    """An environment in its own process. SIGTERM closes the environment, then ends the process."""

    def close(self) -> None:
        """Close the environment. A second SIGTERM, for example from a service manager, does not interrupt this."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        cancel_repetition()
        super().close()


def child_wrapper(infos: Collection[str] | None = None) -> Callable[[Any], Any]:
    """Return a function that wraps an environment in a CheckedEnv, for environments in processes of their own.

    `infos`: names of the infos to keep; None for all. A process of an environment ignores Ctrl-C, which the main
    program handles. SIGTERM closes the environment, which may have started a simulator.
    """
    parent = os.getpid()

    def wrap(env: Any) -> Any:
        if os.getpid() == parent:
            return CheckedEnv(env, infos=infos)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, terminate)
        return _ChildEnv(env, infos=infos)

    return wrap


def run_then_close(env: Any, play: Callable[[], _Result]) -> _Result:
    """Return the result of `play`, and close `env`, also after an error or a signal in the middle of a step.

    An error of closing is only logged, because the environment is no longer needed.
    """
    try:
        summary = play()
    except BaseException:
        cancel_repetition()  # closing may take longer than the interval between signals
        _close(env, terminate=is_a(env, "AsyncVectorEnv"))  # after an error its processes do not answer
        raise
    _close(env, terminate=False)
    return summary


def _close(env: Any, terminate: bool) -> None:
    """Close environments. `terminate`: whether to end their processes with SIGTERM."""
    for _ in range(2):  # an AsyncVectorEnv first raises the error of a pending step
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a pending step is expected
                env.close(**({"terminate": True} if terminate else {}))
            return
        except Exception as error:
            logger.debug("traceback of a failed close of the environments:", exc_info=True)
            failure = f"{type(error).__name__}: {error}"
            if ending.is_set() and isinstance(error, EOFError | ConnectionError):
                return  # the signal has also reached their processes
            if not terminate:
                break
    logger.warning("closing the environments failed: %s", failure)


_NAME = "connection-"
_SWITCH_SECONDS = 0.02
"""Switch interval of the interpreter. Each connection releases the interpreter twice a step anyway. With the default
of 5 ms, 64 connections need a tenth more processor time."""
_CLOSE_SECONDS = 2.0
Main = Callable[[argparse.Namespace], RunSummary]


def run_connections(main: Main, arguments: argparse.Namespace) -> RunSummary:
    """Run `main` once for each of `arguments.connections`, in parallel threads, and return the sum of the summaries.

    Each connection has its own environments, whose seeds follow the previous connection's, and its own file for
    --measure. Threads suit many environments that wait more than they compute: a process for each would import its own
    copy of all modules, 40 MB with gymnasium. Returns when all have ended. Raises the error of the first connection
    that fails, and leaves the others running. Raises Failure if the system cannot start a thread.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(max(before, _SWITCH_SECONDS))
    try:
        summaries = _summaries(main, arguments)
    finally:
        sys.setswitchinterval(before)
    finished = [summary.training_finished for summary in summaries if summary.training_finished is not None]
    return RunSummary(
        episodes=sum(summary.episodes for summary in summaries),
        steps=sum(summary.steps for summary in summaries),
        returns=tuple(value for summary in summaries for value in summary.returns),
        seconds=max(summary.seconds for summary in summaries),
        training_finished=finished[-1] if finished else None,
    )


def _summaries(main: Main, arguments: argparse.Namespace) -> list[RunSummary]:
    """Return the summaries of all connections when all have ended. Raises the first failure."""
    outcomes: SimpleQueue[RunSummary | BaseException] = SimpleQueue()
    threads: list[threading.Thread] = []

    def one(own: argparse.Namespace) -> None:
        try:
            outcomes.put(main(own))
        except BaseException as error:  # the waiting thread raises it
            outcomes.put(error)

    for index in range(arguments.connections):
        own = argparse.Namespace(**vars(arguments))
        if own.seed is not None:
            own.seed += index * own.environments
        if index:
            own.display, own.video, own.video_every = False, None, None  # only the first connection is watched
        if own.measure is not None:
            own.measure = measure_file(own.measure, index)
        threads.append(threading.Thread(target=one, args=(own,), name=f"{_NAME}{index}", daemon=True))
        try:
            threads[-1].start()
        except RuntimeError as error:
            raise Failure(
                f"cannot start a thread for connection {index + 1} of {arguments.connections} ({error}):"
                " use fewer --connections in more processes"
            ) from error
    summaries = []
    for _ in range(arguments.connections):
        outcome = outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        summaries.append(outcome)
    for thread in threads:
        thread.join()
    return summaries


def connection_threads() -> list[threading.Thread]:
    """Return the running threads of connections."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(_NAME)]


def start_method() -> str | None:
    """Return the start method of multiprocessing for this thread; None for the default.

    A forked process has copies of locks of other connections' threads. If such a lock is held during the fork, for
    example the lock of an import, the process waits for it forever.
    """
    return "spawn" if connection_threads() else None


def exit_now(code: int) -> NoReturn:
    """Exit while threads of connections are running, which exceptions do not reach.

    They have two seconds to finish their steps and to close their environments. A thread that still waits for its
    server is not awaited any longer.
    """
    ending.set()
    deadline = time.monotonic() + _CLOSE_SECONDS
    try:
        for thread in connection_threads():
            thread.join(max(0.0, deadline - time.monotonic()))
        if "multiprocessing" in sys.modules:
            for child in sys.modules["multiprocessing"].active_children():
                child.terminate()  # an environment, perhaps in the middle of a step
            sys.modules["multiprocessing.util"]._run_finalizers()  # otherwise Python warns of leaked semaphores
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also after another signal
        os._exit(code)


def measure_file(file: Path, index: int) -> Path:
    """Return the file for measurements of connection `index`: FILE, FILE-1, FILE-2, ..."""
    return file.with_stem(f"{file.stem}-{index}") if index else file
