"""End environments: by SIGTERM, after an error, in processes of their own, and with a close() that fails."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

from relaax.client.connection.failure import Failure
from relaax.client.program.checked_env import CheckedEnv
from relaax.client.program.summary import RunSummary, ending

logger = logging.getLogger("relaax.client")

_AGAIN_SECONDS = 2.0
_Result = TypeVar("_Result")


def terminate(number: int, frame: object) -> NoReturn:
    """Exit with code 0, as a handler of SIGTERM."""
    if hasattr(signal, "setitimer"):
        # Repeated, if a callback of a C library swallows the exception, as cffi's do: physics engines have such.
        signal.signal(signal.SIGALRM, terminate)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    sys.exit(0)  # as an exception: what is open gets closed


def disarm() -> None:
    """Cancel the repetition of `terminate`: while the interpreter ends, it would kill the process."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)


class _ChildEnv(CheckedEnv):
    """An environment in a process of its own, which SIGTERM ends after closing it."""

    def close(self) -> None:
        """Close the environment. A second SIGTERM, as from a service manager, does not interrupt this."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        disarm()
        super().close()


def quiet_child(infos: Collection[str] | None = None) -> Callable[[Any], Any]:
    """Return a wrapper for environments in processes of their own: a CheckedEnv that keeps these infos.

    Ctrl-C is left to the main program. SIGTERM closes the environment, which may have started a simulator.
    """
    parent = os.getpid()

    def wrap(env: Any) -> Any:
        if os.getpid() == parent:
            return CheckedEnv(env, infos=infos)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, terminate)
        return _ChildEnv(env, infos=infos)

    return wrap


def closed_after(env: Any, play: Callable[[], _Result]) -> _Result:
    """Return what `play` returns, and close `env`, also after an error or a signal in the middle of a step.

    An error of closing is logged: nothing depends on the environment any more.
    """
    try:
        summary = play()
    except BaseException:
        disarm()  # the signal has arrived, and closing may take longer than until its repetition
        _close(env, terminate=_has_processes(env))
        raise
    _close(env, terminate=False)
    return summary


def _has_processes(env: Any) -> bool:
    """Return whether it is gymnasium's AsyncVectorEnv: after an error its processes do not answer."""
    vector = getattr(env, "unwrapped", env)
    return any(base.__name__ == "AsyncVectorEnv" for base in type(vector).__mro__)


def _close(env: Any, terminate: bool) -> None:
    """Close environments; `terminate`: end their processes by SIGTERM."""
    for _ in range(2):  # an AsyncVectorEnv first reports the error of a step that is under way
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a step is under way is known
                env.close(**({"terminate": True} if terminate else {}))
            return
        except Exception as error:
            logger.debug("closing the environments:", exc_info=True)
            failure = f"{type(error).__name__}: {error}"
            if ending.is_set() and isinstance(error, EOFError | ConnectionError):
                return  # the signal that ends this program has reached their processes, too
            if not terminate:
                break
    logger.warning("closing the environments failed: %s", failure)


_NAME = "connection-"
_SWITCH_SECONDS = 0.02
"""After which a thread that waits for the interpreter asks for it. Every connection lets go of it twice a step by
itself; asked for it every 5 ms, as by default, 64 of them take a tenth more processor time."""
_CLOSE_SECONDS = 2.0
Main = Callable[[argparse.Namespace], RunSummary]


def side_by_side(main: Main, arguments: argparse.Namespace) -> RunSummary:
    """Run `main` once for each of `arguments.connections`, at the same time, and sum up what they did.

    Each has environments of its own, whose seeds follow those of the one before, and a file of its own for --measure.
    For environments that wait more than they compute, and where there are many: a process for each has its own copy of
    everything that it imports, 40 MB with gymnasium. Ends with the last; raises what the first that failed raised, and
    leaves the others running. Raises Failure if the system gives no more threads.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(max(before, _SWITCH_SECONDS))
    try:
        return _together(_summaries(main, arguments))
    finally:
        sys.setswitchinterval(before)


def _summaries(main: Main, arguments: argparse.Namespace) -> list[RunSummary]:
    """Return the summaries of all connections when all have ended. Raises the first failure."""
    outcomes: SimpleQueue[RunSummary | BaseException] = SimpleQueue()
    threads: list[threading.Thread] = []

    def one(own: argparse.Namespace) -> None:
        try:
            outcomes.put(main(own))
        except BaseException as error:  # for the thread that waits
            outcomes.put(error)

    for index in range(arguments.connections):
        own = argparse.Namespace(**vars(arguments))
        if own.seed is not None:
            own.seed += index * own.environments
        if index:
            own.display, own.video, own.video_every = False, None, None  # one environment is watched
        if own.measure is not None:
            own.measure = measure_file(own.measure, index)
        threads.append(threading.Thread(target=one, args=(own,), name=f"{_NAME}{index}", daemon=True))
        try:
            threads[-1].start()
        except RuntimeError as error:
            raise Failure(
                f"the system has no thread for connection {index + 1} of {arguments.connections} ({error}):"
                " ask for fewer --connections, in more processes"
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


def under_way() -> bool:
    """Return whether any of several connections has not ended."""
    return bool(_connections())


def start_method() -> str | None:
    """Return how multiprocessing is to start processes from this thread; None for its default.

    A process that is forked has copies of the locks of other connections' threads, and if one of them is held, of a
    module that is being imported for instance, waits for it for ever.
    """
    return "spawn" if under_way() else None


def _connections() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(_NAME)]


def leave(code: int) -> NoReturn:
    """Exit while connections are under way, which no exception reaches.

    They have two seconds to end after their steps and to close their environments. Nothing waits for their sockets.
    """
    ending.set()
    deadline = time.monotonic() + _CLOSE_SECONDS
    try:
        for thread in _connections():
            thread.join(max(0.0, deadline - time.monotonic()))
        if "multiprocessing" in sys.modules:
            for child in sys.modules["multiprocessing"].active_children():
                child.terminate()  # an environment, perhaps in a half done step
            sys.modules["multiprocessing.util"]._run_finalizers()  # without it, Python warns of leaked semaphores
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also after another signal
        os._exit(code)


def measure_file(file: Path, index: int) -> Path:
    """Return where connection number `index` of a program writes its measurements: FILE, then FILE-1, FILE-2, ..."""
    return file.with_stem(f"{file.stem}-{index}") if index else file


def _together(summaries: Sequence[RunSummary]) -> RunSummary:
    finished = [summary.training_finished for summary in summaries if summary.training_finished is not None]
    return RunSummary(
        episodes=sum(summary.episodes for summary in summaries),
        steps=sum(summary.steps for summary in summaries),
        returns=tuple(value for summary in summaries for value in summary.returns),
        seconds=max(summary.seconds for summary in summaries),
        training_finished=finished[-1] if finished else None,
    )
