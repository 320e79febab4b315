"""Environments of gymnasium that report the action that was taken instead of the agent's."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from relaax import rlx
from relaax.client import EnvironmentFault, run
from support.rlx_peer import RlxPeer

CHOICE = gymnasium.spaces.Discrete(4, start=2)
PARTS = gymnasium.spaces.Dict({"gear": gymnasium.spaces.Discrete(3), "steer": gymnasium.spaces.Box(-1, 1, (2,))})
LENGTH = 4
"""Steps of an episode. The first and the last have the environment's own action."""


class Driven(gymnasium.Env):
    """Its observation is the number of its steps. Every third step, counted over all episodes, takes its own action."""

    def __init__(self, index: int = 0, space: gymnasium.Space = CHOICE) -> None:
        self.observation_space = gymnasium.spaces.Box(0, np.inf, (1,))
        self.action_space = space
        self._steps = index

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self._ends_at = self._steps + LENGTH
        return np.array([self._steps], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        infos = {"driver": own_action(self._steps, self.action_space)} if self._steps % 3 == 0 else {}
        return np.array([self._steps], np.float32), 1.0, self._steps == self._ends_at, False, infos


def own_action(step: int, space: gymnasium.Space) -> Any:
    if space is CHOICE:
        return 2 + step % 4
    return {"gear": step % 3, "steer": np.array([step % 2, -1], np.float32) / 2}


def check(chosen: list[bool], leaves: rlx.Leaves | None, row: int, step: int, space: gymnasium.Space) -> int:
    """Check one environment's action of its step with this number. Return how many were checked: 0 or 1."""
    assert chosen[row] == (step % 3 == 0)
    if not chosen[row]:
        return 0
    assert leaves is not None
    own = own_action(step, space)
    wanted = [own] if space is CHOICE else [own["gear"], own["steer"]]
    for leaf, value in zip(leaves, wanted, strict=True):
        np.testing.assert_array_equal(leaf[row], value)
    return 1


@pytest.mark.parametrize("space", [CHOICE, PARTS], ids=["choice", "parts"])
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_actions_of_a_vector_are_sent(mode: AutoresetMode, kind: Any, space: gymnasium.Space) -> None:
    env = kind([lambda i=i: Driven(i, space) for i in range(3)], autoreset_mode=mode)
    with RlxPeer() as peer:
        run(env, peer.address, steps=60, taken_action="driver")
        hello, _, *messages = peer.connections[0].received
    env.close()
    assert hello.chosen_actions
    counts, checked = [0, 1, 2], 0
    for message in messages:
        if not isinstance(message, rlx.Step):
            continue
        for row in range(3):
            if message.first is not None and message.first[row]:
                continue
            counts[row] += 1
            chosen = [False] * 3 if message.chosen is None else message.chosen.tolist()
            checked += check(chosen, message.action, row, counts[row], space)
    assert checked > 15


@pytest.mark.parametrize("space", [CHOICE, PARTS], ids=["choice", "parts"])
def test_actions_of_one_environment_are_sent(space: gymnasium.Space) -> None:
    with RlxPeer() as peer:
        run(Driven(0, space), peer.address, steps=30, taken_action="driver")
        messages = [m for m in peer.connections[0].received if isinstance(m, rlx.Step | rlx.Reset)]
    checked = 0
    for step, message in enumerate(messages, 1):
        chosen = [False] if message.chosen is None else message.chosen.tolist()
        checked += check(chosen, message.action, 0, step, space)
    assert checked == 10


@pytest.mark.parametrize("mode", AutoresetMode)
def test_entry_of_a_reset_is_not_an_action(mode: AutoresetMode) -> None:
    class Reminded(Driven):
        def reset(self, **options: Any) -> Any:
            return super().reset(**options)[0], {"driver": 3}

    with RlxPeer() as peer:
        run(SyncVectorEnv([Reminded, Driven], autoreset_mode=mode), peer.address, steps=40, taken_action="driver")
        masks = [step.chosen.tolist() for step in peer.received(rlx.Step) if step.chosen is not None]
    assert sum(map(any, masks)) > 4


def test_missing_entry_and_none_mean_the_agents_action() -> None:
    class Undecided(Driven):
        def step(self, action: Any) -> Any:
            *outcome, _ = super().step(action)
            return *outcome, {"driver": None}

    with RlxPeer() as peer:
        run(SyncVectorEnv([Undecided, Driven]), peer.address, steps=20, taken_action="driver")
        chosen = [step.chosen for step in peer.received(rlx.Step) if step.chosen is not None]
    assert len(chosen) > 2
    assert all(mask.tolist() == [False, True] for mask in chosen)


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (7, r"the entry 'driver' of the infos of environment 1: .*the action holds 7, not a value of Discrete"),
        ("left", "the entry 'driver' of the infos of environment 1: "),
        (2.5, "the entry 'driver' of the infos of environment 1: .*float64"),
    ],
)
def test_action_outside_the_space_is_a_fault_of_the_environment(action: Any, error: str) -> None:
    class Wrong(Driven):
        def step(self, action_of_agent: Any) -> Any:
            *outcome, _ = super().step(action_of_agent)
            return *outcome, {"driver": action}

    with RlxPeer() as peer, pytest.raises(EnvironmentFault, match=error):
        run(SyncVectorEnv([Driven, Wrong]), peer.address, steps=20, taken_action="driver")


def test_without_the_argument_no_action_is_sent() -> None:
    with RlxPeer() as peer:
        run(Driven(), peer.address, steps=10)
        assert not peer.connections[0].hello.chosen_actions
        assert all(step.chosen is None for step in peer.received(rlx.Step))
