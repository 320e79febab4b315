"""Agents learn from the actions that clients chose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import (
    AgentBase,
    Box,
    Dict,
    Discrete,
    Leaves,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    load_algorithm,
)
from relaax.algorithm_base.acting.actions import ActionMap
from relaax.algorithm_base.rollout import Batch
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.algorithm_base.testing.harness import local_replay
from relaax.replay.local import LocalReplay
from relaax.replay.spec import DEMONSTRATION
from support.lives import Lives, play
from support.table_copies import state_of
from support.takeovers import TakenOver

VECTOR = Box(-9, 9, shape=(2,))
CHOICE = Discrete(3, 5)
SIDES = Box(np.array([-3.0, 0.0]), np.array([1.0, 0.5]), dtype="float32")
SMALL: dict[str, Any] = {"dense": [5], "lstm_size": 3}
GREEDY: dict[str, Any] = {"initial_epsilon": 0, "final_epsilons": [0], "final_epsilon_probabilities": [1]}
REPLAY: dict[str, Any] = {"replay_capacity": 2_000, "learning_starts": 2_000, "normalize_rewards": None}


def new_agent(
    name: str,
    actions: Space,
    keys: dict[str, Any],
    environments: int = 2,
    *,
    out_of_step: bool = False,
    replay: bool = False,
) -> tuple[AgentBase, FakeParameters, LocalReplay | None]:
    algorithm = load_algorithm(name, Path())
    config = algorithm.configure({"path": name, "network": SMALL, "normalize_observations": False} | keys)
    server = algorithm.ParameterServer(config, VECTOR, actions)
    size = server.initial_parameters(0).size
    client = FakeParameters(
        np.random.default_rng(7).normal(size=size).astype(np.float32),
        learning_rate=0.1,
        statistics=server.statistics(),
        target=server.target_interval(),
    )
    memory = local_replay(algorithm, config, VECTOR, actions, environments) if replay else None
    agent, _ = make_agent(
        algorithm, config, VECTOR, actions,
        environments=environments, out_of_step=out_of_step, parameters=client, replay=memory,
    )  # fmt: skip
    return agent, client, memory


@pytest.mark.parametrize("idle", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("da3c", {"episode_len": 3}),
        ("da3c", {"episode_len": 3, "overlap": False, "lstm": True}),
        ("da3c", {"whole_episodes": True}),
        ("ppo", {"episode_len": 4, "minibatches": 2, "epochs": 1}),
        ("ppo", {"episode_len": 4, "minibatches": 1, "epochs": 1, "lstm": True, "overlap": True}),
    ],
)
def test_policy_losses_get_the_actions_that_were_taken(
    name: str, keys: dict[str, Any], idle: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, _, _ = new_agent(name, CHOICE, keys | {"cloning_weight": 0.5}, out_of_step=idle > 0)
    module = sys.modules[f"{type(agent).__module__.rpartition('.')[0]}.{'loss' if name == 'da3c' else 'clipped_loss'}"]
    loss = module.ActorCriticLoss if name == "da3c" else module.ClippedLoss
    batches: list[Batch] = []
    made = loss.__init__

    def recorded(self: Any, config: Any, policy: Any, batch: Batch) -> None:
        fields = ("inputs", "actions", "mask", "chosen")
        batches.append(
            type("Copy", (), {f: None if getattr(batch, f) is None else getattr(batch, f).copy() for f in fields})
        )  # type: ignore[arg-type]
        made(self, config, policy, batch)

    monkeypatch.setattr(loss, "__init__", recorded)
    lives = TakenOver(VECTOR, CHOICE, [1, 2], 0.4, idle)
    play(agent, lives, 60)
    taken = {decision.observation[0].tobytes(): decision.action for each in lives.decisions for decision in each}
    seen = 0
    for batch in batches:
        for index in np.argwhere(batch.mask > 0):
            observation = batch.inputs[tuple(index)].tobytes()
            assert batch.actions[tuple(index)] == taken[observation] - CHOICE.start
            chosen = batch.chosen is not None and bool(batch.chosen[tuple(index)])
            assert chosen == (observation in lives.chosen)
            seen += chosen
    assert seen > 20


def test_policy_loss_learns_only_the_value_of_chosen_actions() -> None:
    """If all actions were chosen, the heads of the policy get no gradient; with a cloning weight, they get one."""
    for name in ("da3c", "ppo"):
        for weight in (0.0, 0.5):
            keys = {"episode_len": 3, "cloning_weight": weight, "network": SMALL | {"separate": True}}
            if name == "ppo":
                keys |= {"epochs": 1, "minibatches": 1}
            agent, client, _ = new_agent(name, CHOICE, keys)
            play(agent, TakenOver(VECTOR, CHOICE, [1, 2], 1.0), 10)
            gradients = [push.gradient for push in client.pushes if push.gradient is not None]
            assert len(gradients) > 1
            moved = [np.count_nonzero(gradient) / gradient.size for gradient in gradients]
            assert (np.mean(moved) > 0.75) == (weight > 0), (name, weight, moved)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("n_step_q", {"update_interval": 3, "lstm": True}),
        ("n_step_q", {"update_interval": 3, "double": True}),
        ("async_q", {"update_interval": 2}),
    ],
)
def test_value_methods_learn_as_if_they_had_chosen_the_actions(
    name: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, wanted, _ = new_agent(name, CHOICE, GREEDY | keys)
    own = forced_actions(agent, monkeypatch)
    play(agent, Lives(VECTOR, [1, 2]), 30)
    agent, found, _ = new_agent(name, CHOICE, GREEDY | keys)
    lives = Lives(VECTOR, [1, 2])
    play(agent, _Overriding(lives, own), 30)  # type: ignore[arg-type]
    assert len(wanted.pushes) > 8
    for expected, made in zip(wanted.pushes, found.pushes, strict=True):
        np.testing.assert_allclose(made.gradient, expected.gradient, rtol=1e-5, atol=1e-6)


def forced_actions(agent: AgentBase, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Let the agent take random actions. Return the list to which they are appended, int64 [2] each, from 0."""
    rng, own = np.random.default_rng(5), []

    def choose(*_: Any) -> np.ndarray:
        own.append(rng.integers(0, 3, 2))
        return own[-1]

    monkeypatch.setattr(sys.modules[type(agent).__module__], "epsilon_greedy", choose)
    if hasattr(agent, "_choose_actions"):
        monkeypatch.setattr(agent, "_choose_actions", choose)
    return own


class _Overriding:
    """Lives in which the client always takes the given actions."""

    def __init__(self, lives: Lives, own: list[np.ndarray]) -> None:
        self._lives, self._own = lives, iter(own)
        self.decisions, self.wants_action, self.reset = lives.decisions, True, lives.reset

    def step(self, actions: Leaves) -> Any:
        taken = next(self._own) + CHOICE.start
        step = self._lives.step([taken])
        step.chosen, step.actions = np.ones(2, np.bool_), [taken]
        return step


@pytest.mark.parametrize("idle", [0.0, 0.5])
@pytest.mark.parametrize(
    ("name", "actions"), [("gorila", CHOICE), ("apex", CHOICE), ("sac", SIDES), ("apex_dpg", SIDES)]
)
def test_replay_memory_gets_the_actions_that_were_taken(name: str, actions: Space, idle: float) -> None:
    agent, _, replay = new_agent(name, actions, REPLAY | {"n_step": 3}, out_of_step=idle > 0, replay=True)
    assert replay is not None
    lives = TakenOver(VECTOR, actions, [1, 2], 0.4, idle)
    play(agent, lives, 90)
    agent.reset(lives.reset())
    agent.learn()
    taken = {decision.observation[0].tobytes(): decision.action for each in lives.decisions for decision in each}
    columns = replay.table.sample(40 * replay.table.size).columns
    seen = set()
    for observation, action in zip(columns["observation"], columns["action"], strict=True):
        wanted = taken[observation.tobytes()]
        if actions is SIDES:
            wanted = (wanted - np.array([-1.0, 0.25])) / np.array([2.0, 0.25])
        else:
            wanted = wanted - CHOICE.start
        np.testing.assert_allclose(action, wanted, atol=1e-6)
        seen.add(observation.tobytes())
    assert len(seen & lives.chosen) > 40


@pytest.mark.parametrize("idle", [0.0, 0.5])
@pytest.mark.parametrize(("name", "actions"), [("apex", CHOICE), ("apex_dpg", SIDES)])
def test_transitions_of_chosen_actions_are_demonstrations(name: str, actions: Space, idle: float) -> None:
    keys = REPLAY | {"n_step": 3, "demonstration_priority": 1e6}
    agent, _, replay = new_agent(name, actions, keys, out_of_step=idle > 0, replay=True)
    assert replay is not None
    lives = TakenOver(VECTOR, actions, [1, 2], 0.4, idle)
    play(agent, lives, 90)
    agent.reset(lives.reset())
    agent.learn()
    sample = replay.table.sample(40 * replay.table.size)
    found = {}
    for observation, is_chosen, probability in zip(
        sample.columns["observation"], sample.columns[DEMONSTRATION], sample.probabilities, strict=True
    ):
        assert is_chosen == (observation.tobytes() in lives.chosen)
        found[observation.tobytes()] = bool(is_chosen), probability
    chosen = [probability for is_chosen, probability in found.values() if is_chosen]
    own = [probability for is_chosen, probability in found.values() if not is_chosen]
    assert len(chosen) > 40
    assert min(chosen) > max(own)


@pytest.mark.parametrize("name", ["apex", "apex_dpg"])
def test_priorities_are_those_of_the_actions_that_were_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = REPLAY | {"n_step": 2, "priority_offset": 5} | ({} if name == "apex" else {"random_steps": 0})
    found = []
    for forced in (True, False):
        agent, _, replay = new_agent(name, CHOICE if name == "apex" else SIDES, keys, replay=True)
        assert replay is not None
        lives: Any = Lives(VECTOR, [1, 2])
        acting = agent._agent if hasattr(agent, "_agent") else agent
        if forced:
            own = forced_actions(acting, monkeypatch) if name == "apex" else forced_numbers(acting, monkeypatch)
        else:
            monkeypatch.undo()
            lives = _Overriding(lives, own) if name == "apex" else _OverridingNumbers(lives, own)
        play(agent, lives, 60)
        agent.reset(lives.reset())
        agent.learn()
        state = state_of(replay.table, 1 << 20)
        found.append(dict(zip(state["keys"].tolist(), state["priorities"].tolist(), strict=True)))
    assert len(found[0]) > 80
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def forced_numbers(agent: AgentBase, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    rng, own = np.random.default_rng(5), []

    def explore(_: Any) -> np.ndarray:
        own.append(rng.uniform(-1, 1, (2, 2)).astype(np.float32))
        return own[-1]

    monkeypatch.setattr(agent, "_explore", explore)
    return own


class _OverridingNumbers(_Overriding):
    def step(self, actions: Leaves) -> Any:
        taken = (np.array([-1.0, 0.25]) + np.array([2.0, 0.25]) * next(self._own)).astype(np.float32)
        step = self._lives.step([taken])
        step.chosen, step.actions = np.ones(2, np.bool_), [taken]
        return step


SPACES_WITH_ACTIONS: list[tuple[Space, Leaves]] = [
    (CHOICE, [np.array([5, 7])]),
    (MultiDiscrete([2, 4]), [np.array([[1, 3], [0, 2]])]),
    (MultiBinary((2, 2)), [np.array([[[1, 0], [1, 1]], [[0, 0], [0, 1]]], np.int8)]),
    (SIDES, [np.array([[-3, 0.5], [0.25, 0.125]], np.float32)]),
    (Tuple([SIDES, SIDES]), [np.array([[1, 0.5], [-1, 0]], np.float32), np.array([[0, 0.1], [-3, 0.2]], np.float32)]),
    (
        Dict({"a": CHOICE, "b": SIDES, "c": MultiDiscrete([3, 3])}),
        [np.array([6, 5]), np.array([[-2, 0.5], [0, 0.25]], np.float32), np.array([[2, 1], [0, 2]])],
    ),
]


@pytest.mark.parametrize(("space", "leaves"), SPACES_WITH_ACTIONS, ids=lambda value: type(value).__name__)
def test_actions_of_leaves_become_the_same_leaves(space: Space, leaves: Leaves) -> None:
    map_ = ActionMap(space)
    actions = map_.actions_of(leaves)
    assert (actions.shape[1:], actions.dtype) == (map_.policy.action_shape, map_.policy.action_dtype)
    for found, wanted in zip(map_(actions), leaves, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
