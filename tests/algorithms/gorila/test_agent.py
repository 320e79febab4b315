"""Exploration, insertions and step counts of the agents of gorila and apex."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, Discrete, TargetInterval, load_algorithm
from relaax.algorithm_base.network import OBSERVATION
from relaax.algorithm_base.testing import FakeParameters, RandomEnvironments, live, make_agent
from relaax.algorithm_base.testing.harness import local_replay
from relaax.configuration import ConfigurationError
from relaax.parameters.moments import Moments
from relaax.replay.interfaces import Insertion
from relaax.replay.local import LocalReplay
from support.table_copies import state_of

SPACES = Box(-1, 1, shape=(2,)), Discrete(2)
BIASES = np.array([0, 0, 0, 0, 0, 1], np.float32)  # for every observation, the values of the actions are 0 and 1
TWENTY = Moments(1e9, np.zeros(1), np.full(1, 400e9))  # standard deviation 20
SMALL: dict[str, Any] = {
    "replay_capacity": 1000,
    "learning_starts": 50,
    "batch_size": 16,
    "dueling": False,
    "normalize_rewards": None,
    "network": {"dense": []},
}


def agent_of(
    name: str, environments: int, frame_skip: int = 1, actor_count: int = 0, first_actor: int = 0, **keys: Any
) -> tuple[AgentBase, FakeParameters, LocalReplay]:
    algorithm = load_algorithm(name, Path())
    config = algorithm.configure({"path": name} | SMALL | keys)
    interval = algorithm.ParameterServer(config, *SPACES).target_interval()
    statistics = algorithm.ParameterServer(config, *SPACES).statistics()
    parameters_client = FakeParameters(
        BIASES,
        learning_rate=0.0,
        statistics=statistics,
        target=interval,
        frame_skip=frame_skip,
        actor_count=actor_count,
    )
    parameters_client.publish(BIASES, {name: TWENTY for name in statistics if name != OBSERVATION})
    replay = local_replay(algorithm, config, *SPACES, environments)
    assert replay is not None
    agent, _ = make_agent(
        algorithm,
        config,
        *SPACES,
        environments=environments,
        first_actor=first_actor,
        parameters=parameters_client,
        replay=replay,
    )
    return agent, parameters_client, replay


def random_environments(environments: int) -> RandomEnvironments:
    return RandomEnvironments(*SPACES, environments, end_probability=0.0)


def test_gorila_epsilon_falls_with_frames_of_all_workers() -> None:
    keys = {"learner": "separate", "exploration_frames": 64, "actor_interval": 1, "learning_starts": 1000}
    agent, parameters_client, _ = agent_of("gorila", 4, frame_skip=4, **keys)
    live(agent, random_environments(4), 6)
    seen = [value for name, value in parameters_client.scalars if name == "epsilon"]
    assert seen == pytest.approx([0.775, 0.55, 0.325, 0.1, 0.1, 0.1])


def test_epsilon_with_a_bundled_learner_is_recorded() -> None:
    agent, parameters_client, _ = agent_of("gorila", 4, exploration_frames=800, samples_per_insert=16)
    live(agent, random_environments(4), 300)
    seen = [value for name, value in parameters_client.scalars if name == "epsilon"]
    assert len(seen) > 100, "recorded with the parameters of each update"
    assert seen == sorted(seen, reverse=True)
    assert 0.5 < seen[0] < 0.9, "learning starts after 50 of 200 steps"
    assert seen[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("removal", ["oldest", "lowest_priority", "inverse_priority"])
def test_full_memory_removes_items_as_configured(removal: str) -> None:
    agent, _, replay = agent_of("apex", 1, replay_capacity=100, removal=removal, removal_exponent=-1.0)
    inserted: list[float] = []
    (writer,) = replay.writers
    insert = writer.insert

    def record_and_insert(insertion: Insertion) -> None:
        assert insertion.priorities is not None
        inserted.extend(insertion.priorities.tolist())
        insert(insertion)

    writer.insert = record_and_insert  # type: ignore[method-assign]
    live(agent, random_environments(1), 1200)
    kept = sorted(state_of(replay.table)["priorities"].tolist())
    assert len(inserted) > 1000
    if removal == "oldest":  # the learner returns the same priorities, except for rounding
        assert kept == pytest.approx(sorted(inserted[-100:]), abs=1e-6)
    elif removal == "inverse_priority":  # small priorities are removed more often
        assert np.median(inserted) < 0.8 * np.median(kept) < 0.8 * np.median(sorted(inserted)[-100:])
    else:  # new items are not removed immediately
        assert kept[-40:] == pytest.approx(sorted(inserted)[-40:], abs=1e-6)
        assert kept[-40] > sorted(inserted[-100:])[-40]


def test_removal_by_priority_requires_priorities() -> None:
    gorila = load_algorithm("gorila", Path())
    assert gorila.configure({"path": "gorila", "prioritized": True, "removal": "lowest_priority"})
    for removal in ("lowest_priority", "inverse_priority"):
        with pytest.raises(ConfigurationError, match=f"{removal}, which needs priorities, and prioritized is false"):
            gorila.configure({"path": "gorila", "removal": removal})


def test_removal_exponent_reaches_the_table() -> None:
    apex = load_algorithm("apex", Path())
    config = apex.configure({"path": "apex", "removal": "inverse_priority", "removal_exponent": -0.7})
    assert apex.Replay is not None
    spec = apex.Replay(config, *SPACES).table().spec
    assert (spec.remover, spec.remover_exponent) == ("inverse_priority", -0.7)
    assert apex.configure({"path": "apex"}).removal_exponent == -0.4, "Horgan et al. 2018, appendix D"


def test_exploration_of_gorila_begins_at_random() -> None:
    agent, _, _ = agent_of("gorila", 8000)
    assert agent.reset([np.zeros((8000, 2), np.float32)])[0].mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("actor_count", "first_actor", "places"),
    [(0, 0, [0, 1 / 3, 2 / 3, 1]), (9, 2, [0.25, 0.375, 0.5, 0.625])],
)
def test_each_actor_of_apex_has_its_own_epsilon(actor_count: int, first_actor: int, places: list[float]) -> None:
    keys = {"actor_interval": 1, "learning_starts": 1000}
    agent, parameters_client, _ = agent_of("apex", 4, actor_count=actor_count, first_actor=first_actor, **keys)
    live(agent, random_environments(4), 1)
    (seen,) = [value for name, value in parameters_client.scalars if name == "epsilon"]
    assert seen == pytest.approx(np.mean([0.4 ** (1 + 7 * place) for place in places]))


def test_apex_actors_insert_initial_priorities() -> None:
    keys = {"epsilon": 0, "n_step": 2, "rewards_gamma": 0.5}
    agent, _, replay = agent_of("apex", 2, **keys)

    class Two(RandomEnvironments):
        def step(self, actions: Any) -> Any:
            step = super().step(actions)
            step.rewards = np.full(2, 2.0)
            return step

    live(agent, Two(*SPACES, 2, end_probability=0.0), 60)
    assert replay.table.size == 100
    # Two rewards of 2, then the largest value 1, minus the value 1 of the taken action: 2 + 0.5 x 2 + 0.25 x 1 - 1.
    priorities = state_of(replay.table)["priorities"]
    np.testing.assert_allclose(priorities, 2.25 + 1e-6, rtol=1e-6)


def test_stored_rewards_are_raw_and_priorities_are_scaled() -> None:
    keys = {"normalize_rewards": "scale", "n_step": 2, "rewards_gamma": 0.5, "learning_starts": 1000}
    agent, _, replay = agent_of("apex", 2, **keys)

    class Twenty(RandomEnvironments):
        def step(self, actions: Any) -> Any:
            step = super().step(actions)
            step.rewards = np.full(2, 20.0)
            return step

    live(agent, Twenty(*SPACES, 2, end_probability=0.0), 60)
    kept = state_of(replay.table)
    np.testing.assert_allclose(kept["columns/reward"], 30, rtol=1e-5)
    # 1 + 0.5 x 1 + 0.25 x 1, minus the value of the taken action, 1 or 0.
    np.testing.assert_allclose(kept["priorities"], 1.75 - kept["columns/action"] + 1e-6, rtol=1e-5)


def test_gorila_actors_insert_constant_priorities() -> None:
    agent, _, replay = agent_of("gorila", 2, prioritized=True, learning_starts=1000)
    live(agent, random_environments(2), 60)
    assert set(state_of(replay.table)["priorities"].tolist()) == {1.0}


def test_bundle_learns_at_the_sample_limit_in_small_parts() -> None:
    agent, parameters_client, replay = agent_of("gorila", 4, samples_per_insert=8)
    updates = []
    envs = random_environments(4)
    actions = agent.reset(envs.reset())
    for _ in range(400):
        actions = agent.step(envs.step(actions))
        agent.learn()
        agent.learn()  # a second call has no effect
        updates.append(sum(push.gradient is not None for push in parameters_client.pushes))
    assert np.diff(updates).max() == 2, "8 x 4 samples a step are two batches"
    inserts = replay.limiter.inserts
    assert inserts > 1400
    assert updates[-1] * 16 <= inserts * 8
    assert updates[-1] * 16 >= inserts * 8 - 50 * 8 - 2 * 50 * 8, (
        "all items except the first ones and the pending samples"
    )
    assert parameters_client.global_step == envs.counted
    assert {push.env_steps for push in parameters_client.pushes if push.gradient is None} <= {400}, (
        "before learning starts"
    )


def test_agent_with_separate_learners_pushes_its_steps() -> None:
    agent, parameters_client, _ = agent_of("gorila", 3, learner="separate", actor_interval=10)
    live(agent, random_environments(3), 75)
    counts = [push.env_steps for push in parameters_client.pushes if push.gradient is None]
    assert counts == [30] * 7
    gradients = [push for push in parameters_client.pushes if push.gradient is not None]
    assert len(gradients) > 50
    assert {push.env_steps for push in gradients} == {0}


def actions_of(agent: AgentBase, environments: int, steps: int) -> list[list[int]]:
    """Reset the agent, run it for `steps` steps, and return the actions of each step."""
    envs, taken = random_environments(environments), []
    actions = agent.reset(envs.reset())
    for _ in range(steps):
        actions = agent.step(envs.step(actions))
        agent.learn()
        taken.append(actions[0].tolist())
    return taken


GREEDY: dict[str, Any] = {"initial_epsilon": 0, "final_epsilon": 0}
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "bundle": ("gorila", GREEDY),
    "beside-learners": ("gorila", GREEDY | {"learner": "separate", "actor_interval": 5}),
    "apex": ("apex", {"epsilon": 0, "actor_interval": 5}),
}


@pytest.mark.parametrize("place", PLACES)
def test_agent_acts_by_the_newest_parameters(place: str) -> None:
    name, keys = PLACES[place]
    agent, parameters_client, _ = agent_of(name, 4, **keys)
    assert actions_of(agent, 4, 60)[-1] == [1] * 4
    assert len([push for push in parameters_client.pushes if push.gradient is not None]) > 10, "it has learned"
    parameters_client.publish(BIASES[::-1] + np.array([0, 0, 0, 0, 1, 0], np.float32))
    assert actions_of(agent, 4, 10)[-1] == [0] * 4


def test_bundle_explores_less_with_the_frames() -> None:
    agent, parameters_client, _ = agent_of("gorila", 8, exploration_frames=800, final_epsilon=0)
    taken = actions_of(agent, 8, 130)
    assert parameters_client.global_step > 800
    assert 0.2 < 1 - np.mean(taken[:10]) < 0.8, "about half of the first actions are wrong"
    assert 0.05 < 1 - np.mean(taken[45:55]) < 0.45, "a quarter are wrong after half of the annealing"
    assert taken[-10:] == [[1] * 8] * 10


@pytest.mark.parametrize("exploit", [False, True])
def test_agent_acts_by_normalized_observations(exploit: bool) -> None:
    """The values are the normalised x and 0. The mean is 10, so action 0 is the best if x > 10."""
    gorila = load_algorithm("gorila", Path())
    box = Box(-99, 99, shape=(1,))
    config = gorila.configure({"path": "gorila", "normalize_observations": True} | SMALL | GREEDY)
    parameters_client = FakeParameters(
        np.array([1, 0, 0, 0], np.float32),
        statistics=gorila.ParameterServer(config, box, SPACES[1]).statistics(),
        target=TargetInterval(updates=1000),
    )
    parameters_client.publish(parameters_client.parameters, {"observation": Moments.of(np.array([[8.0], [12.0]]))})
    agent, _ = make_agent(
        gorila,
        config,
        box,
        SPACES[1],
        environments=3,
        exploit=exploit,
        parameters=parameters_client,
    )
    assert agent.reset([np.array([[5.0], [9.0], [11.0]], np.float32)])[0].tolist() == [1, 1, 0]


def test_memory_keeps_observations_unnormalized() -> None:
    agent, _, replay = agent_of("gorila", 2, normalize_observations=True, learning_starts=1000)
    bounded = RandomEnvironments(*SPACES, 2, end_probability=0.2)
    seen = [bounded.reset()]
    actions = agent.reset(seen[0])
    finals = []
    for _ in range(80):
        step = bounded.step(actions)
        seen.append(step.observations)
        finals += step.final_observations or []
        actions = agent.step(step)
        agent.learn()
    seen_rows = {tuple(row) for leaves in seen for row in leaves[0].tolist()} | {
        tuple(row) for f in finals for row in f
    }
    kept = replay.table.sample(500).columns
    assert replay.table.size == 100
    for name in ("observation", "next_observation"):
        assert {tuple(row) for row in kept[name].tolist()} <= seen_rows, name


def test_exploit_agent_has_no_replay_memory() -> None:
    algorithm = load_algorithm("apex", Path())
    config = algorithm.configure({"path": "apex"} | SMALL)
    agent, _ = make_agent(algorithm, config, *SPACES, environments=3, exploit=True, parameters=FakeParameters(BIASES))
    assert agent.context.replay is None
    assert agent.reset([np.zeros((3, 2), np.float32)])[0].tolist() == [1, 1, 1]
    graph = agent.policy_graph()
    assert graph is not None
    assert [rule.head for rule in graph.action] == ["q"]
