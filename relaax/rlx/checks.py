"""Check that the messages after a handshake fit what was agreed there.

One `Checker` per connection and side sees every message before it is sent, and after it is read. It raises
ProtocolError; whose mistake it was, the connection knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax.rlx.errors import ErrorCode, ProtocolError
from relaax.rlx.leaf_checks import LeavesCheck, is_within
from relaax.rlx.messages import (
    MAX_NUMBER,
    MAX_REWARD,
    Actions,
    Autoreset,
    Episode,
    EpisodeReturns,
    Error,
    Hello,
    Init,
    Leaves,
    Limits,
    Mask,
    Message,
    Metrics,
    Reset,
    Step,
)
from relaax.rlx.metric_names import formed


class Checker:
    """The agreement of one handshake. `limits` are those of the welcome, once it is known."""

    def __init__(self, hello: Hello) -> None:
        n = hello.environments
        self.limits = Limits()
        self._shape = (n,)
        self._reports_episodes = hello.reports_episodes
        self._observation = LeavesCheck(hello.observation_space, n, bounded=False)
        self._action = LeavesCheck(hello.action_space, n, bounded=True)
        autoreset = np.broadcast_to(np.array([int(a) for a in hello.autoreset]), self._shape)
        self._disabled, self._same, self._next = (_some(autoreset == int(kind)) for kind in Autoreset)
        self._metric_names: set[str] = set()
        self.between_episodes: Mask | None = None
        """The environments whose episode ended with the step before, and that start one with the next (NEXT_STEP); bool
        of shape [N], or None if there are none.
        """
        self._between_after: Mask | None = None
        """The same after the message checked last."""
        self._checks = {
            Init: self._init,
            Step: self._step,
            Reset: self._reset,
            Actions: self._actions,
            EpisodeReturns: self._returns,
            Metrics: self._metrics,
        }

    def check(self, message: Message) -> None:
        """Raise ProtocolError if a message does not fit."""
        self._between_after = self.between_episodes
        check = self._checks.get(type(message))
        if check is not None:
            check(message)  # type: ignore[operator]

    def commit(self) -> None:
        """Confirm that the message checked last was sent."""
        self.between_episodes = self._between_after

    def _init(self, message: Init) -> None:
        self._observation.check("observation", message.observation)
        self._mask("partial", message.partial)
        self._between_after = None

    def _step(self, message: Step) -> None:
        self._numbers("reward", message.reward, MAX_REWARD)
        self._observation.check("observation", message.observation)
        unmarked = self.between_episodes is message.terminated is message.truncated is message.first is None
        if unmarked and message.final_observation is None and not message.episodes:
            return  # most steps say no more
        terminated = self._mask("terminated", message.terminated)
        truncated = self._mask("truncated", message.truncated)
        first = self._mask("first", message.first)
        ended = _either(terminated, truncated)
        if (first is None) != (self.between_episodes is None) or (
            first is not None and not np.array_equal(first, self.between_episodes)  # type: ignore[arg-type]
        ):
            raise _invalid(
                f"first marks {_listed(first)}; the step before (NEXT_STEP) ended the episode of "
                f"{_listed(self.between_episodes)}"
            )
        if ended is None:
            if message.final_observation is not None:
                raise _invalid("final_observation came with a step that ends no episode")
            self._between_after = None
        else:
            self._ends(ended, truncated, first, message.final_observation)
        if message.episodes:
            self._episodes(message.episodes)

    def _ends(self, ended: Mask, truncated: Mask | None, first: Mask | None, final: Leaves | None) -> None:
        if (wrong := _both(ended, self._disabled)) is not None:
            raise _invalid(
                f"terminated or truncated marks {_listed(wrong)}, whose autoreset is DISABLED: episodes end there with "
                "reset, not with step"
            )
        if (wrong := _both(ended, first)) is not None:
            raise _invalid(
                f"first and terminated or truncated mark {_listed(wrong)}: no episode starts and ends in one step"
            )
        replaced = _both(ended, self._same)
        if final is not None:
            if replaced is None:
                raise _invalid("final_observation came with a step that ends no SAME_STEP episode")
            self._observation.check("final_observation", final, replaced)
        elif (missing := _both(truncated, self._same)) is not None:
            raise _invalid(f"truncated marks {_listed(missing)}, and final_observation is missing")
        self._between_after = _both(ended, self._next)

    def _reset(self, message: Reset) -> None:
        self._numbers("reward", message.reward, MAX_REWARD)
        truncated = self._mask("truncated", message.truncated)
        if (wrong := _both(truncated, self.between_episodes)) is not None:
            raise _invalid(f"truncated marks {_listed(wrong)}, whose episode ended before")
        if truncated is not None and message.final_observation is None:
            raise _invalid(f"truncated marks {_listed(truncated)}, and final_observation is missing")
        if message.final_observation is not None:
            self._observation.check("final_observation", message.final_observation)
        self._episodes(message.episodes)

    def _actions(self, message: Actions) -> None:
        self._action.check("action", message.action)

    def _returns(self, message: EpisodeReturns) -> None:
        self._numbers("episode_return", message.episode_return, MAX_NUMBER)

    def _metrics(self, message: Metrics) -> None:
        most = self.limits.max_metric_name_bytes
        for index, (name, value) in enumerate(message.scalars):
            size = len(name.encode("utf-8", "surrogatepass"))
            if size > most:
                raise ProtocolError(
                    ErrorCode.LIMIT_EXCEEDED, f"scalars[{index}].name has {size} bytes; at most {most} is allowed"
                )
            if not name:
                raise _invalid(f"scalars[{index}].name is missing")
            if not abs(value) <= MAX_NUMBER:
                raise _invalid(
                    f"scalars[{index}].value, of {formed(name)}, is {value}; {_range(MAX_NUMBER)} is allowed"
                )
        names = self._metric_names.union(formed(name) for name, _ in message.scalars)
        if len(names) > self.limits.max_metric_names:
            raise ProtocolError(
                ErrorCode.LIMIT_EXCEEDED,
                f"more than {self.limits.max_metric_names} different metric names on one connection",
            )
        self._metric_names = names

    def _mask(self, field: str, mask: Any) -> Mask | None:
        """Return the mask, or None if no element is true."""
        if mask is None:
            return None
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != self._shape:
            raise _invalid(self._misfit(field, mask, np.dtype(np.bool_)))
        return _some(mask)

    def _numbers(self, field: str, numbers: Any, most: float) -> None:
        if not isinstance(numbers, np.ndarray) or numbers.dtype != np.float64 or numbers.shape != self._shape:
            raise _invalid(self._misfit(field, numbers, np.dtype(np.float64)))
        if not is_within(numbers, most):
            environment = int(np.argmin(np.abs(numbers) <= most))
            which = f" of environment {environment}" if len(numbers) > 1 else ""
            raise _invalid(f"{field}{which} is {numbers[environment]}; {_range(most)} is allowed")

    def _misfit(self, field: str, found: Any, dtype: np.dtype[Any]) -> str:
        """Return what is wrong with a list that has an element for each environment."""
        n = self._shape[0]
        if not isinstance(found, np.ndarray) or found.dtype != dtype or found.ndim != 1:
            return f"{field} is no {dtype} array of shape ({n},)"
        if not len(found):
            return f"{field} is missing; it has one element for each environment"
        return f"{field} has {len(found)} element{'s' * (len(found) > 1)} for {n} environment{'s' * (n > 1)}"

    def _episodes(self, episodes: Sequence[Episode]) -> None:
        if episodes and not self._reports_episodes:
            raise _invalid("episodes came from a client that did not say reports_episodes")
        if len({episode.environment for episode in episodes}) != len(episodes):
            raise _invalid("episodes names an environment twice")
        for index, episode in enumerate(episodes):
            if not 0 <= episode.environment < self._shape[0]:
                last = self._shape[0] - 1
                raise _invalid(f"episodes[{index}].environment is {episode.environment}; at most {last} is allowed")
            if not abs(episode.episode_return) <= MAX_NUMBER:
                raise _invalid(
                    f"episodes[{index}].episode_return is {episode.episode_return}; {_range(MAX_NUMBER)} is allowed"
                )
            if episode.length < 1:
                raise _invalid(f"episodes[{index}].length is {episode.length}; at least 1 is needed")


def check_error(message: Error) -> None:
    """Raise ProtocolError (INVALID_VALUE) if an error says a wait that is none."""
    if not 0 <= message.retry_after_seconds < np.inf:
        raise _invalid(f"retry_after_seconds is {message.retry_after_seconds}")


def _range(most: float) -> str:
    return f"a number from {-most:g} to {most:g}"


def _some(mask: Mask) -> Mask | None:
    return mask if np.count_nonzero(mask) else None


def _either(a: Mask | None, b: Mask | None) -> Mask | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def _both(a: Mask | None, b: Mask | None) -> Mask | None:
    return None if a is None or b is None else _some(a & b)


def _listed(mask: Mask | None) -> str:
    if mask is None:
        return "no environment"
    if len(mask) == 1:
        return "the environment"
    indices = np.flatnonzero(mask).tolist()
    listed = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
    return f"environment{'s' * (len(indices) > 1)} {listed}"


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_VALUE, message)
