"""Action masks of gymnasium environments, sent as a part of the observation."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, MultiBinary

from relaax.client import command
from relaax.client.connection.failure import EnvironmentFault
from relaax.client.connection.values import values_of
from relaax.rlx.action_masks import ACTION_MASK, choices_of

INFO, METHOD = "info", "method"
PLACES = {INFO: f"info[{ACTION_MASK!r}]", METHOD: "action_masks()"}


class SendMask(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper that adds the action mask to the observation, as the part `action_mask` of a Dict.

    An observation that is not a Dict becomes the part `observation`. `source`: a key of `PLACES`. With the last
    observation of an episode, the mask may be missing; it is then all zeros.

    Raises command.UsageError if the environment has no masks, and EnvironmentFault for a mask that does not fit.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], source: str) -> None:
        super().__init__(env)
        self._source = source
        self._size = sum(choices_of(values_of(env.action_space).space))
        if not self._size:
            self._refuse(f"its actions, {env.action_space}, have no choices")
        if source == METHOD and not env.has_wrapper_attr("action_masks"):
            self._refuse("it has no method action_masks()")
        space = env.observation_space
        self._is_dict = isinstance(space, Dict)
        parts = dict(space.spaces) if isinstance(space, Dict) else {"observation": space}
        if ACTION_MASK in parts:
            self._refuse(f"its observation already has a part {ACTION_MASK!r}")
        self.observation_space = Dict({**parts, ACTION_MASK: MultiBinary(self._size)})

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**options)
        return self._with_mask(observation, info, ended=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        ended = bool(terminated or truncated)
        return self._with_mask(observation, info, ended), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Any, ended: bool) -> Any:
        if observation is None and ended:
            return None
        mask = _flat(info.get(ACTION_MASK) if self._source == INFO else self.env.get_wrapper_attr("action_masks")())
        if mask is None:
            if not ended:
                self._fail("is missing; every reset and step must return it")
            mask = np.zeros(self._size)
        if mask.size != self._size:
            self._fail(f"has {mask.size} elements, and a mask of the actions {self.action_space} has {self._size}")
        parts = observation if self._is_dict else {"observation": observation}
        return {**parts, ACTION_MASK: (mask != 0).astype(np.int8)}

    def _fail(self, reason: str) -> NoReturn:
        raise EnvironmentFault(f"--action-mask {self._source}: {PLACES[self._source]} {reason}")

    def _refuse(self, reason: str) -> NoReturn:
        raise command.UsageError(f"--action-mask {self._source}: {type(self.unwrapped).__name__}: {reason}")


def _flat(mask: Any) -> npt.NDArray[Any] | None:
    """Return a mask as a vector. The mask of several choices may be a tuple of arrays, as in gymnasium."""
    if isinstance(mask, tuple | list):
        return np.concatenate([np.ravel(part) for part in mask])
    return None if mask is None else np.ravel(mask)
