"""The client of one environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax import rlx
from relaax.client.base import ClientBase
from relaax.client.checked_env import reward_of
from relaax.client.values import single_leaves

_PARTIAL = np.array([True])


class Client(ClientBase):
    """One environment's way to its agent. See `ClientBase` for the arguments.

    The life of a client::

        with Client("127.0.0.1:7001", observation_space=..., action_space=...) as client:
            while ...:
                action = client.init(state)
                while ...:
                    action = client.send(reward, state)      # the outcome of the last action
                episode_return = client.reset(reward)         # the outcome of the episode's last action

    Actions are int for a Discrete space, otherwise arrays, tuples and dicts, as the space says.

    A connection that is lost is replaced behind the scenes, and the agent begins the interrupted episode anew where it
    stands; the environment sees nothing but a pause. Every call may raise Failure, if the agent's side failed for
    good or for longer than `retry_seconds`; TrainingFinished, if there is nothing left to do; and ValueError for a
    state or a reward that the protocol does not carry, such as NaN.
    """

    _return = 0.0

    def init(self, state: Any) -> Any:
        """Begin an episode with its first state; return the first action."""
        self._begin()
        actions = self._session.start(rlx.Init(single_leaves(self._observe, state)))
        self._in_episode = True
        self._return = 0.0
        return self._act.take(iter(actions.action), True)

    def send(self, reward: float, state: Any, *, episodes: Sequence[rlx.Episode] = ()) -> Any:
        """Send the last action's reward and the state that it led to; return the next action."""
        self._check_begun()
        number = reward_of(reward)
        leaves = single_leaves(self._observe, state)
        actions = self._session.step(rlx.Step(np.array([number]), leaves, episodes=episodes))
        self._return += number
        if actions is None:
            self._interrupted = True
            actions = self._session.start(rlx.Init(leaves, partial=_PARTIAL))
        return self._act.take(iter(actions.action), True)

    def reset(
        self, reward: float, *, truncated: bool = False, state: Any = None, episodes: Sequence[rlx.Episode] = ()
    ) -> float:
        """End the episode with the last action's reward; return the episode's return, the sum of its rewards.

        `truncated`: the episode was cut off rather than ended by the task's rule; then `state`, the final one, is
        needed, because its value is part of what the agent learns from.
        """
        self._check_begun()
        number = reward_of(reward)
        if truncated and state is None:
            raise ValueError("a truncated episode needs its final state: reset(reward, truncated=True, state=state)")
        final = None if state is None else single_leaves(self._observe, state)
        mask = np.array([True]) if truncated else None
        answer = self._session.reset(rlx.Reset(np.array([number]), mask, final, episodes))
        self._in_episode = False
        self._return += number
        if answer is None or self._interrupted:
            return self._return
        return float(answer.episode_return[0])
