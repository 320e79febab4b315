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
from relaax.client.connection.values import Values, copy_value, flag_of, require_final, reward_of, values_of
from relaax.client.connection.vector_client import Autoreset
from relaax.rlx.value_mismatch import ValueMismatch

logger = logging.getLogger("relaax.client")

_RESET = ("observation", "info")
_STEP = ("observation", "reward", "terminated", "truncated", "info")
_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating)
_SEQUENCES = (tuple, list)
_ENDING_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM") if hasattr(signal, name)
]


PARAMETERS = "relaax_parameters"
"""The name by which `CheckedEnv.set_wrapper_attr` sets the parameters of the next episodes."""


class CheckedEnv:
    """A wrapper of a gymnasium Env that checks, converts and copies outcomes. Other attributes are the Env's.

    `relaax.client.run` wraps an Env and each environment of a SyncVectorEnv. The environments of an AsyncVectorEnv are
    in other processes: wrap each of them there.

    Observations are converted to the dtypes of the space if no value changes. They are copied, because an environment
    may reuse its arrays. The reward may have the shape (1,). A terminated episode may end without an observation
    (None), a truncated episode may not. `infos`: names of the infos to keep; None for all. Errors of `close` are
    logged.

    `reset` and `step` raise EnvironmentFault for an invalid outcome, and EnvironmentExit if the environment calls
    sys.exit().
    """

    def __init__(self, env: Any, name: str = "", infos: Collection[str] | None = None, place: str = "") -> None:
        """`name`: the environment's name in errors. `place`: its index among several, such as "1 of 3"."""
        self.env = env
        self.infos = infos
        self._name = name or environment_name(env)
        self._place = place
        self._values: Values | None = None
        self._last: Any = None
        self._parameters: tuple[str, Mapping[str, float]] = ("options", {})

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # for example during unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    def set_wrapper_attr(self, name: str, value: Any, **options: Any) -> bool:
        """Set an attribute of the environment, as a wrapper of gymnasium does.

        PARAMETERS is the parameters of the next episodes: a form, "options" or "attributes", and numbers by name.
        """
        if name == PARAMETERS:
            self._parameters = value
            return True
        return bool(self.env.set_wrapper_attr(name, value, **options))

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment, as a wrapper of gymnasium does, or the parameters."""
        return self._parameters if name == PARAMETERS else self.env.get_wrapper_attr(name)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Return its first observation and infos."""
        form, parameters = self._parameters
        if parameters and form == "options":
            options["options"] = {**(options.get("options") or {}), **parameters}
        elif parameters:
            self._set_attributes(parameters)
        try:
            outcome = self.env.reset(**options)
        except SystemExit as end:
            self._raise_exit(end)
        observation, info = self._unpacked("reset", outcome, _RESET)
        self._last = self._copy_observation(observation)
        return self._last, self._filter_info(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step. Return observation, reward, terminated, truncated and infos."""
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
            raise EnvironmentFault(f"environment {self._label}: {error}") from None
        self._last = self._copy_observation(observation)
        return self._last, reward, over, cut, self._filter_info(info) if info else {}

    def close(self) -> None:
        """Close the environment. An error is only logged, because the environment is no longer needed."""
        error = closing_error(self.env)
        if isinstance(error, SystemExit):
            logger.warning("environment %s: close() called sys.exit(%s)", self._label, _code(error))
        elif error is not None:
            logger.warning("environment %s: close() failed: %s: %s", self._label, type(error).__name__, error)
            logger.debug("traceback of the error in close():", exc_info=error)

    def _set_attributes(self, parameters: Mapping[str, float]) -> None:
        """Set attributes of the environment without wrappers. Raises EnvironmentFault if it does not have one."""
        env = getattr(self.env, "unwrapped", self.env)
        for name, value in parameters.items():
            if not hasattr(env, name):
                raise EnvironmentFault(
                    f"environment {self._label} lacks the attribute {name!r}, a parameter of the server"
                )
            setattr(env, name, value)

    @property
    def _label(self) -> str:
        return f"{self._place} ({self._name})" if self._place else self._name

    def _unpacked(self, call: str, outcome: Any, parts: tuple[str, ...]) -> Any:
        if isinstance(outcome, _SEQUENCES) and len(outcome) == len(parts):
            return outcome
        what = f"{len(outcome)} values" if isinstance(outcome, tuple | list) else type(outcome).__name__
        wanted = f"{len(parts)} values: {', '.join(parts)}"
        raise EnvironmentFault(f"environment {self._label}: {call}() returned {what} instead of the {wanted}")

    def _copy_observation(self, observation: Any) -> Any:
        if self._values is None:
            self._values = values_of(self.env.observation_space)
        try:
            return copy_value(self._values, observation)
        except ValueMismatch as mismatch:
            raise EnvironmentFault(
                f"the observation of environment {self._label} is not in its space: {mismatch}"
            ) from None

    def _filter_info(self, info: Any) -> dict[str, Any]:
        """Return the infos to keep, with numbers as float: a vector makes an array of the first value's type."""
        if self.infos is None or not isinstance(info, Mapping):
            return info or {}
        kept = ((name, info[name]) for name in self.infos if info.get(name) is not None)
        return {name: float(value) if isinstance(value, _NUMBERS) else value for name, value in kept}

    def _raise_exit(self, end: SystemExit) -> NoReturn:
        if is_of_signal(end):
            raise end
        raise EnvironmentExit(f"environment {self._label} ended the program by sys.exit({_code(end)})") from end


def checked(env: Any, name: str, infos: Collection[str] | None) -> Any:
    """Return `env` as a CheckedEnv. In a SyncVectorEnv of gymnasium, each environment becomes a CheckedEnv.

    Any other vector is returned unchanged. If the vector has wrappers, all infos are kept, because wrappers may read
    them.
    """
    if not hasattr(env, "single_observation_space"):
        return _as_checked(env, name, infos)
    vector = getattr(env, "unwrapped", env)
    if is_a(env, "SyncVectorEnv"):
        many = len(vector.envs)
        infos = infos if vector is env else None
        vector.envs = [
            _as_checked(one, name, infos, f"{i} of {many}" if many > 1 else "") for i, one in enumerate(vector.envs)
        ]
    return env


def _as_checked(env: Any, name: str, infos: Collection[str] | None, place: str = "") -> CheckedEnv:
    return CheckedEnv(env.env if isinstance(env, CheckedEnv) else env, name, infos, place)


def is_a(env: Any, name: str) -> bool:
    """Return whether the class of an environment without wrappers, or a base class, has this name."""
    return any(base.__name__ == name for base in type(getattr(env, "unwrapped", env)).__mro__)


def environment_name(env: Any) -> str:
    """Return the environment's id, or its class name."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec is not None else type(getattr(env, "unwrapped", env)).__name__


def closing_error(env: Any) -> SystemExit | Exception | None:
    """Close an environment, if it has a method `close`. Return the error that `close` raised, or None.

    Raises SystemExit if a signal handler of this program raises it during the call.
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
    """Return whether a signal handler of this program raised `end`."""
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
    """Return the autoreset mode of a VectorEnv. Raises ValueError if it declares none."""
    # The attribute is read first, because metadata may belong to the class, which several environments share.
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
        f"the vector environment has metadata['autoreset_mode'] {mode!r}: set it to its mode,"
        " gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
    )
