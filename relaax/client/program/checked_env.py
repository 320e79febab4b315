"""A wrapper of environments that checks, converts and copies every observation, reward and flag."""

from __future__ import annotations

import logging
import reprlib
import signal
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, NoReturn

import numpy as np

from relaax.client.connection.failure import EnvironmentExit, EnvironmentFault
from relaax.client.connection.values import Values, copied, flag_of, require_final, reward_of, values_of
from relaax.client.connection.vector_client import Autoreset
from relaax.rlx.misfit import Misfit

logger = logging.getLogger("relaax.client")

_RESET = ("observation", "info")
_STEP = ("observation", "reward", "terminated", "truncated", "info")
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_SEQUENCES = (tuple, list)
_ENDING_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM") if hasattr(signal, name)
]


class CheckedEnv:
    """A gymnasium Env whose outcomes are checked, converted and copied. Everything else is that of the Env.

    `relaax.client.run` puts an Env and each environment of a SyncVectorEnv into one. An AsyncVectorEnv has its
    environments in other processes: make each of them a CheckedEnv there.

    Observations are converted to the space's dtypes if no value changes, and copied: an environment may reuse its
    arrays. The reward may have the shape (1,). A terminated episode may end without an observation (None), a truncated
    one may not. `infos`: the names of the infos to keep; None for all. Errors of `close` are logged.

    `reset` and `step` raise EnvironmentFault for an outcome that cannot be used, and EnvironmentExit if the environment
    calls sys.exit().
    """

    def __init__(self, env: Any, name: str = "", infos: Collection[str] | None = None, place: str = "") -> None:
        """`name`: the environment's name in errors. `place`: which of several it is: "1 of 3"."""
        self.env = env
        self.infos = infos
        self._name = name or name_of(env)
        self._place = place
        self._values: Values | None = None
        self._last: Any = None

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # as while it is unpickled
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; return its first observation and infos."""
        try:
            outcome = self.env.reset(**options)
        except SystemExit as end:
            self._raise_exit(end)
        observation, info = self._unpacked("reset", outcome, _RESET)
        self._last = self._owned(observation)
        return self._last, self._kept(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; return observation, reward, terminated, truncated and infos."""
        try:
            outcome = self.env.step(action)
        except SystemExit as end:
            self._raise_exit(end)
        if type(outcome) is not tuple or len(outcome) != len(_STEP):
            outcome = self._unpacked("step", outcome, _STEP)
        observation, reward, terminated, truncated, info = outcome
        try:
            reward, over, cut = reward_of(reward), flag_of("terminated", terminated), flag_of("truncated", truncated)
            if observation is None and (over or cut):
                require_final(observation, over, cut)
                observation = self._last
        except ValueError as error:
            raise EnvironmentFault(f"environment {self._described}: {error}") from None
        self._last = self._owned(observation)
        return self._last, reward, over, cut, self._kept(info) if info else {}

    def close(self) -> None:
        """Close the environment. An error is logged: nothing depends on it any more."""
        error = closing_error(self.env)
        if isinstance(error, SystemExit):
            logger.warning("environment %s: close() called sys.exit(%s)", self._described, _code(error))
        elif error is not None:
            logger.warning("environment %s: close() failed: %s: %s", self._described, type(error).__name__, error)
            logger.debug("origin of the error:", exc_info=error)

    @property
    def _described(self) -> str:
        return f"{self._place} ({self._name})" if self._place else self._name

    def _unpacked(self, call: str, outcome: Any, parts: tuple[str, ...]) -> Any:
        if isinstance(outcome, _SEQUENCES) and len(outcome) == len(parts):
            return outcome
        what = f"{len(outcome)} values" if isinstance(outcome, tuple | list) else type(outcome).__name__
        wanted = f"{len(parts)} values: {', '.join(parts)}"
        raise EnvironmentFault(f"environment {self._described}: {call}() returned {what} instead of {wanted}")

    def _owned(self, observation: Any) -> Any:
        if self._values is None:
            self._values = values_of(self.env.observation_space)
        try:
            return copied(self._values, observation)
        except Misfit as misfit:
            raise EnvironmentFault(
                f"the observation of environment {self._described} is not in its space: {misfit}"
            ) from None

    def _kept(self, info: Any) -> dict[str, Any]:
        """Return the infos that are asked for. Numbers become float: a vector merges values by the first one's type."""
        if self.infos is None or not isinstance(info, Mapping):
            return info or {}
        kept = ((name, info[name]) for name in self.infos if info.get(name) is not None)
        return {name: float(value) if isinstance(value, _NUMBERS) else value for name, value in kept}

    def _raise_exit(self, end: SystemExit) -> NoReturn:
        if is_of_signal(end):
            raise end
        raise EnvironmentExit(f"environment {self._described} called sys.exit({_code(end)})") from end


def checked(env: Any, name: str, infos: Collection[str] | None) -> Any:
    """Return `env` as a CheckedEnv, or a vector of gymnasium's SyncVectorEnv with each of its environments as one.

    Any other vector is returned unchanged. If wrappers are around the vector, all infos are kept: they may read them.
    """
    if not hasattr(env, "single_observation_space"):
        return _as_checked(env, name, infos)
    vector = getattr(env, "unwrapped", env)
    if any(base.__name__ == "SyncVectorEnv" for base in type(vector).__mro__):
        many = len(vector.envs)
        infos = infos if vector is env else None
        vector.envs = [
            _as_checked(one, name, infos, f"{i} of {many}" if many > 1 else "") for i, one in enumerate(vector.envs)
        ]
    return env


def _as_checked(env: Any, name: str, infos: Collection[str] | None, place: str = "") -> CheckedEnv:
    return CheckedEnv(env.env if isinstance(env, CheckedEnv) else env, name, infos, place)


def name_of(env: Any) -> str:
    """Return the environment's id, or the name of its class."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def closing_error(env: Any) -> SystemExit | Exception | None:
    """Close an environment, if it can be closed; return what close() raised.

    Raises SystemExit if a signal handler of this program raised it meanwhile.
    """
    close = getattr(env, "close", None)
    try:
        if close is not None:
            close()
    except SystemExit as end:
        if is_of_signal(end):
            raise
        return end
    except Exception as error:
        return error
    return None


def is_of_signal(end: SystemExit) -> bool:
    """Return whether a signal handler of this program raised it."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in _ENDING_SIGNALS}
    trace: TracebackType | None = end.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


def _code(end: SystemExit) -> str:
    return "" if end.code is None else reprlib.repr(end.code)


def autoreset_of(env: Any) -> Autoreset:
    """Return the autoreset mode of a VectorEnv. Raises ValueError if it does not tell."""
    # Some environments write the mode into metadata that all instances of their class share: ask the instance first.
    mode = getattr(getattr(env, "unwrapped", env), "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    name = str(getattr(mode, "value", mode)).replace("_", "").lower()
    match name:
        case "nextstep":
            return "next_step"
        case "samestep":
            return "same_step"
        case "disabled":
            return "disabled"
    raise ValueError(
        f"the vector environment says {mode!r} for metadata['autoreset_mode']:"
        " set it to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED, whichever it does"
    )
