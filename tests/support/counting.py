"""An environment that detects any state, reward or action that is one step late."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from relaax import rlx
from support.rlx_peer import PeerConnection

ACTIONS, START = 97, 5


def length_of(index: int, episode: int) -> int:
    """Return the number of steps of an episode: 1 to 4."""
    return 1 + (3 * index + 2 * episode + episode // 3) % 4


def is_truncated(index: int, episode: int) -> bool:
    """Return whether the episode is truncated, not terminated."""
    return (index + episode) % 2 == 1


def reward_of(episode: int, t: int) -> float:
    """Return the reward of the step that leads to time `t`."""
    return 10.0 * episode + t


def return_of(index: int, episode: int) -> float:
    """Compute the return of a whole episode."""
    return sum(reward_of(episode, t) for t in range(1, length_of(index, episode) + 1))


def action_for(observations: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the correct actions for observations [..., (index, episode, t)]. Each observation has its own action."""
    index, episode, t = np.moveaxis(observations.astype(np.int64), -1, 0)
    return START + (7 * index + 31 * episode + 3 * t) % ACTIONS


def counting_policy(message: rlx.Message, connection: PeerConnection) -> rlx.Leaves:
    assert isinstance(message, rlx.Init | rlx.Step)
    return [action_for(message.observation[0])]


class Counting(gymnasium.Env):
    """An environment with observations (index, episode, t). Raises AssertionError for an incorrect action."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 1e6, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(ACTIONS, start=START)

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.episode = -1
        self.t = 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seeds.append(seed)
        self.episode += 1
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.t < length_of(self.index, self.episode), "a step after the episode's end"
        expected = int(action_for(self._observation()))
        assert action == expected, f"at {self._observation()} the action is {expected}, not {action}"
        self.t += 1
        ended = self.t == length_of(self.index, self.episode)
        cut = ended and is_truncated(self.index, self.episode)
        return self._observation(), reward_of(self.episode, self.t), ended and not cut, cut, {}

    def _observation(self) -> npt.NDArray[np.float32]:
        return np.array([self.index, self.episode, self.t], np.float32)


def check_same_step(messages: list[rlx.Message]) -> int:
    """Check the messages that a server received from a vector of `Counting`, from Init on.

    The vector uses Autoreset.SAME_STEP. Returns the number of episodes that ended.
    """
    place, ended = None, 0
    for message in messages:
        if isinstance(message, rlx.Init):
            place = message.observation[0]
        elif isinstance(message, rlx.Step):
            assert place is not None
            assert message.first is None
            for i, (_, episode, t) in enumerate(place.astype(int).tolist()):
                over = t + 1 == length_of(i, episode)
                assert message.reward[i] == reward_of(episode, t + 1)
                assert _at(message.terminated, i) == (over and not is_truncated(i, episode))
                assert _at(message.truncated, i) == (over and is_truncated(i, episode))
                after = [i, episode + 1, 0] if over else [i, episode, t + 1]
                assert message.observation[0][i].tolist() == after
                if _at(message.truncated, i):
                    assert message.final_observation is not None
                    assert message.final_observation[0][i].tolist() == [i, episode, t + 1]
                ended += over
            place = message.observation[0]
    return ended


def check_next_step(messages: list[rlx.Message]) -> int:
    """Check the same as `check_same_step` for Autoreset.NEXT_STEP."""
    place, ended = None, 0
    for message in messages:
        if isinstance(message, rlx.Init):
            place = message.observation[0]
        elif isinstance(message, rlx.Step):
            assert place is not None
            assert message.final_observation is None
            for i, (_, episode, t) in enumerate(place.astype(int).tolist()):
                if t == length_of(i, episode):
                    assert _at(message.first, i)
                    assert message.observation[0][i].tolist() == [i, episode + 1, 0]
                    assert not _at(message.terminated, i)
                    assert not _at(message.truncated, i)
                    continue
                over = t + 1 == length_of(i, episode)
                assert not _at(message.first, i)
                assert message.reward[i] == reward_of(episode, t + 1)
                assert message.observation[0][i].tolist() == [i, episode, t + 1]
                assert _at(message.terminated, i) == (over and not is_truncated(i, episode))
                assert _at(message.truncated, i) == (over and is_truncated(i, episode))
                ended += over
            place = message.observation[0]
    return ended


def _at(mask: rlx.Mask | None, index: int) -> bool:
    return mask is not None and bool(mask[index])
