"""End environments: by SIGTERM, after an error, in processes of their own, and with a close() that fails."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection
from typing import Any, NoReturn, TypeVar

from relaax.client.checked_env import CheckedEnv

logger = logging.getLogger("relaax.client")

ending = threading.Event()
"""Set when the program ends while connections are under way in threads: each ends after its step."""
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
