"""Checks that the messages after a handshake fit its hello and welcome.

Each end of a connection has one `Checker`. It checks every message before it is sent and after it is received. If a
message does not fit, it raises ProtocolError, which the connection turns into LocalProtocolError or
RemoteProtocolError.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax.rlx.errors import ErrorCode, ProtocolError, above_maximum, below_one, too_many_bytes
from relaax.rlx.leaf_checks import LeavesCheck, check_numbers, is_within
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
    Welcome,
)
from relaax.rlx.metric_names import missing_metric_name, normalize_name


class Checker:
    """A checker of the messages of one connection.

    `limits`, `out_of_step` and `chosen_actions` are the welcome's, and `parameters` is the number of its parameters, or
    None without `environment_parameters`. Before it, they have their defaults.
    """

    def __init__(self, hello: Hello) -> None:
        n = hello.environments
        self.limits = Limits()
        self.out_of_step = False
        self.chosen_actions = False
        self.parameters: int | None = None
        self._shape = (n,)
        self._reports_episodes = hello.reports_episodes
        self._observation = LeavesCheck(hello.observation_space, n, bounded=False)
        self._action = LeavesCheck(hello.action_space, n, bounded=True)
        autoreset = np.broadcast_to(np.array([int(a) for a in hello.autoreset]), self._shape)
        self._disabled, self._same_step, self._next_step = (
            _none_if_empty(autoreset == int(kind)) for kind in Autoreset
        )
        self._metric_names: set[str] = set()
        self.between_episodes: Mask | None = None
        """Mask of the environments between two episodes, bool [N]; None if there are none. Their next step that is not
        idle starts an episode.
        """
        self._between_after: Mask | None = None
        """The value that `commit` gives to `between_episodes`: its value after the message that was checked last."""
        self._checks = {
            Init: self._check_init,
            Step: self._check_step,
            Reset: self._check_reset,
            Actions: self._check_actions,
            EpisodeReturns: self._check_returns,
            Metrics: self._check_metrics,
        }

    def admit(self, welcome: Welcome) -> None:
        """Set the limits and the capabilities of the welcome."""
        self.limits = welcome.limits
        self.out_of_step, self.chosen_actions = welcome.out_of_step, welcome.chosen_actions
        self.parameters = len(welcome.parameter_names) if welcome.environment_parameters else None

    def check(self, message: Message) -> None:
        """Raise ProtocolError if a message does not fit the handshake."""
        self._between_after = self.between_episodes
        check = self._checks.get(type(message))
        if check is not None:
            check(message)  # type: ignore[operator]

    def commit(self) -> None:
        """Record that the message checked last was sent or received."""
        self.between_episodes = self._between_after

    def _check_init(self, message: Init) -> None:
        idle = self._check_idle(message.idle)
        self._observation.check("observation", message.observation, None if idle is None else ~idle)
        self._check_mask("partial", message.partial)
        self._between_after = None if idle is None else idle.copy()

    def _check_step(self, step: Step) -> None:
        self._check_numbers("reward", step.reward, MAX_REWARD)
        away = self.between_episodes
        unmarked = away is step.terminated is step.truncated is step.first is step.idle is step.chosen is None
        if unmarked and step.final_observation is step.action is None:
            self._observation.check("observation", step.observation)  # the usual step: a reward and an observation
        else:
            self._check_marks(step)
        if step.episodes:
            self._check_episodes(step.episodes)

    def _check_marks(self, step: Step) -> None:
        """Check the masks of a step, and the observations that are not void."""
        terminated = self._check_mask("terminated", step.terminated)
        truncated = self._check_mask("truncated", step.truncated)
        first = self._check_mask("first", step.first)
        idle = self._check_idle(step.idle)
        ended = _union(terminated, truncated)
        replaced, shown = _intersection(ended, self._same_step), _intersection(ended, self._next_step)
        rows = None if idle is None else ~idle if shown is None else ~idle | shown  # the others are void
        self._observation.check("observation", step.observation, rows)
        away = self.between_episodes
        beginning = away if idle is None else _intersection(away, ~idle)
        if (first is None) != (beginning is None) or (
            first is not None and not np.array_equal(first, beginning)  # type: ignore[arg-type]
        ):
            raise _invalid(self._describe_first(first, beginning))
        if ended is None:
            if step.final_observation is not None:
                raise _invalid("final_observation came with a step that ends no episode")
        else:
            self._check_ends(ended, first)
            self._check_final(replaced, truncated, step.final_observation)
        waiting = idle if ended is None else _intersection(idle, ~ended)
        self._check_chosen(step, _union(first, waiting))
        self._between_after = _union(_intersection(_union(away, ended), idle), shown)

    def _check_ends(self, ended: Mask, first: Mask | None) -> None:
        if (wrong := _intersection(ended, self._disabled)) is not None:
            raise _invalid(
                f"terminated or truncated marks {_format_environments(wrong)}, whose autoreset is DISABLED: "
                "episodes end there with reset, not with step"
            )
        if (wrong := _intersection(ended, first)) is not None:
            raise _invalid(
                f"first and terminated or truncated mark {_format_environments(wrong)}: "
                "no episode starts and ends in one step"
            )
        if (wrong := _intersection(ended, self.between_episodes)) is not None:
            raise _invalid(f"terminated or truncated marks {self._describe_away(wrong)}")

    def _check_final(self, replaced: Mask | None, truncated: Mask | None, final: Leaves | None) -> None:
        """Check the final observations of a step. `replaced`: where `observation` does not have the final one."""
        if final is not None:
            if replaced is None:
                raise _invalid("final_observation came with a step that ends no SAME_STEP episode")
            self._observation.check("final_observation", final, replaced)
        elif (missing := _intersection(truncated, self._same_step)) is not None:
            raise _missing_final_observation(missing)

    def _check_reset(self, message: Reset) -> None:
        self._check_numbers("reward", message.reward, MAX_REWARD)
        truncated = self._check_mask("truncated", message.truncated)
        if (wrong := _intersection(truncated, self.between_episodes)) is not None:
            raise _invalid(f"truncated marks {self._describe_away(wrong)}")
        if truncated is not None and message.final_observation is None:
            raise _missing_final_observation(truncated)
        if message.final_observation is not None:
            self._observation.check("final_observation", message.final_observation)
        self._check_chosen(message, self.between_episodes)
        self._check_episodes(message.episodes)

    def _check_chosen(self, message: Step | Reset, void: Mask | None) -> None:
        """Check the client's own actions. `void`: the environments that have taken no action, bool [N]."""
        chosen = self._check_mask("chosen", message.chosen)
        if chosen is None:
            if message.action is not None:
                raise _invalid("action came without chosen")
            return
        if not self.chosen_actions:
            raise _invalid(f"chosen marks {_format_environments(chosen)}, and the welcome has no chosen_actions")
        if (wrong := _intersection(chosen, void)) is not None:
            raise _invalid(f"chosen marks {_format_environments(wrong)}, which took no action")
        self._action.check("action", message.action, chosen)

    def _check_actions(self, message: Actions) -> None:
        self._action.check("action", message.action)
        if message.parameters_of or message.parameters is not None:
            check_new_parameters(message, self.parameters, self._shape[0])

    def _check_returns(self, message: EpisodeReturns) -> None:
        self._check_numbers("episode_return", message.episode_return, MAX_NUMBER)

    def _check_metrics(self, message: Metrics) -> None:
        most = self.limits.max_metric_name_bytes
        for index, (name, value) in enumerate(message.scalars):
            size = len(name.encode("utf-8", "surrogatepass"))
            if size > most:
                raise too_many_bytes(f"scalars[{index}].name", size, most)
            if not name:
                raise missing_metric_name(index)
            if not abs(value) <= MAX_NUMBER:
                raise _invalid(
                    f"scalars[{index}].value, of {normalize_name(name)}, is {value}; "
                    f"{_format_range(MAX_NUMBER)} is allowed"
                )
        names = self._metric_names.union(normalize_name(name) for name, _ in message.scalars)
        if len(names) > self.limits.max_metric_names:
            raise ProtocolError(
                ErrorCode.LIMIT_EXCEEDED,
                f"more than {self.limits.max_metric_names} different metric names on one connection",
            )
        self._metric_names = names

    def _check_idle(self, mask: Any) -> Mask | None:
        """Return the mask `idle`, or None if no element is true."""
        idle = self._check_mask("idle", mask)
        if idle is not None and not self.out_of_step:
            raise _invalid(f"idle marks {_format_environments(idle)}, and the welcome has no out_of_step")
        return idle

    def _check_mask(self, field: str, mask: Any) -> Mask | None:
        """Return the mask, or None if no element is true."""
        if mask is None:
            return None
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != self._shape:
            raise _invalid(self._describe_array_error(field, mask, np.dtype(np.bool_)))
        return _none_if_empty(mask)

    def _check_numbers(self, field: str, numbers: Any, most: float) -> None:
        if not isinstance(numbers, np.ndarray) or numbers.dtype != np.float64 or numbers.shape != self._shape:
            raise _invalid(self._describe_array_error(field, numbers, np.dtype(np.float64)))
        if not is_within(numbers, most):
            environment = int(np.argmin(np.abs(numbers) <= most))
            which = f" of environment {environment}" if len(numbers) > 1 else ""
            raise _invalid(f"{field}{which} is {numbers[environment]}; {_format_range(most)} is allowed")

    def _describe_first(self, first: Mask | None, beginning: Mask | None) -> str:
        """Return the error of `first` if it does not mark the environments in `beginning`."""
        marked, right = _format_environments(first), _format_environments(beginning)
        if self.out_of_step:
            return f"first marks {marked}; it must mark {right} (between two episodes and not idle)"
        return f"first marks {marked}; the step before (NEXT_STEP) ended the episode of {right}"

    def _describe_away(self, away: Mask) -> str:
        return f"{_format_environments(away)}, whose episode ended before{' or has not begun' * self.out_of_step}"

    def _describe_array_error(self, field: str, found: Any, dtype: np.dtype[Any]) -> str:
        """Return the error of a list that must have one element for each environment."""
        n = self._shape[0]
        if not isinstance(found, np.ndarray) or found.dtype != dtype or found.ndim != 1:
            return f"{field} must be a {dtype} array of shape ({n},)"
        if not len(found):
            return f"{field} is missing; it must have one element for each environment"
        return f"{field} has {len(found)} element{'s' * (len(found) > 1)} for {n} environment{'s' * (n > 1)}"

    def _check_episodes(self, episodes: Sequence[Episode]) -> None:
        if episodes and not self._reports_episodes:
            raise _invalid("episodes came from a client that did not say reports_episodes")
        if len({episode.environment for episode in episodes}) != len(episodes):
            raise _invalid("episodes names an environment twice")
        for index, episode in enumerate(episodes):
            if not 0 <= episode.environment < self._shape[0]:
                last = self._shape[0] - 1
                raise _invalid(above_maximum(f"episodes[{index}].environment", episode.environment, last))
            if not abs(episode.episode_return) <= MAX_NUMBER:
                raise _invalid(
                    f"episodes[{index}].episode_return is {episode.episode_return}; "
                    f"{_format_range(MAX_NUMBER)} is allowed"
                )
            if episode.length < 1:
                raise _invalid(below_one(f"episodes[{index}].length", episode.length))


def check_new_parameters(message: Actions, count: int | None, environments: int) -> None:
    """Raise ProtocolError (INVALID_VALUE) if the new parameters of an answer are invalid.

    `count`: the number of parameters in the welcome; None if it has no `environment_parameters`.
    """
    of, values = message.parameters_of, message.parameters
    if count is None:
        if of or values is not None:
            raise _invalid("parameters came with actions, and the welcome lacks environment_parameters")
        return
    if any(after <= before for before, after in itertools.pairwise(of)):
        raise _invalid("parameters_of must be increasing")
    if of and not 0 <= of[-1] < environments:
        raise _invalid(above_maximum("parameters_of", of[-1], environments - 1))
    check_numbers("parameters", values, len(of) * count)


def check_error(message: Error) -> None:
    """Raise ProtocolError (INVALID_VALUE) if `retry_after_seconds` of an error is negative, infinite or NaN."""
    if not 0 <= message.retry_after_seconds < np.inf:
        raise _invalid(f"retry_after_seconds must be finite and at least 0, not {message.retry_after_seconds}")


def _missing_final_observation(truncated: Mask) -> ProtocolError:
    return _invalid(f"truncated marks {_format_environments(truncated)}, and final_observation is missing")


def _format_range(most: float) -> str:
    return f"a number from {-most:g} to {most:g}"


def _none_if_empty(mask: Mask) -> Mask | None:
    return mask if np.count_nonzero(mask) else None


def _union(a: Mask | None, b: Mask | None) -> Mask | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def _intersection(a: Mask | None, b: Mask | None) -> Mask | None:
    return None if a is None or b is None else _none_if_empty(a & b)


def _format_environments(mask: Mask | None) -> str:
    if mask is None:
        return "no environment"
    if len(mask) == 1:
        return "the environment"
    indices = np.flatnonzero(mask).tolist()
    listed = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
    return f"environment{'s' * (len(indices) > 1)} {listed}"


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_VALUE, message)
