"""Exploration, actions and refusals of the agents that act by action values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, Discrete, MultiDiscrete, Space, StepResult, load_algorithm
from relaax.algorithm_base.acting.exploration import drawn_epsilons
from relaax.algorithm_base.acting.policy_graph import LargestOutput
from relaax.algorithm_base.testing import FakeParameters, RandomEnvironments, live, make_agent
from relaax.configuration import ConfigurationError

ASYNC_Q = load_algorithm("async_q", Path())
N_STEP_Q = load_algorithm("n_step_q", Path())
VECTOR = Box(-1, 1, shape=(2,))
LINEAR: dict[str, Any] = {"path": "async_q", "normalize_rewards": None, "network": {"dense": []}}


def agent_with(
    biases: list[float],
    environments: int = 1,
    exploit: bool = False,
    space: Space = VECTOR,
    frame_skip: int = 1,
    **keys: Any,
) -> tuple[AgentBase, FakeParameters]:
    """Return an agent whose action values are `biases` for every observation."""
    parameters = np.array([*[0.0] * (2 * len(biases)), *biases], np.float32)
    config = ASYNC_Q.configure(LINEAR | keys)
    server = ASYNC_Q.ParameterServer(config, space, Discrete(len(biases)))
    parameters_client = FakeParameters(parameters, target=server.target_interval(), frame_skip=frame_skip)
    spaces = (space, Discrete(len(biases)))
    return make_agent(
        ASYNC_Q, config, *spaces, environments=environments, exploit=exploit, parameters=parameters_client
    )


def nothing(count: int) -> list[np.ndarray]:
    return [np.zeros((count, 2), np.float32)]


def test_exploration_begins_with_the_initial_epsilon() -> None:
    agent, _ = agent_with([0.0, 1.0], 8000)
    assert agent.reset(nothing(8000))[0].mean() == pytest.approx(0.5, abs=0.02)
    agent, _ = agent_with([0.0, 1.0], 8000, initial_epsilon=0.2)
    assert agent.reset(nothing(8000))[0].mean() == pytest.approx(0.9, abs=0.02)


def test_epsilon_falls_with_the_frames_of_all_workers() -> None:
    keys = {"final_epsilons": [0.1], "final_epsilon_probabilities": [1], "update_interval": 1}
    agent, parameters_client = agent_with([0.0, 1.0], 4, exploration_frames=64, frame_skip=4, **keys)
    envs = RandomEnvironments(VECTOR, Discrete(2), 4, end_probability=0.0)
    live(agent, envs, 6)
    seen = [value for name, value in parameters_client.scalars if name == "epsilon"]
    # Each push adds 16 of 64 frames, and its reply has the new count: epsilon is 1, then 1 - 0.9 / 4 and so on.
    assert seen == pytest.approx([1.0, 0.775, 0.55, 0.325, 0.1, 0.1])


def test_each_actor_has_its_own_final_epsilon() -> None:
    agent, _ = agent_with([0.0, 1.0], 9000, exploration_frames=0)
    mean = agent.reset(nothing(9000))[0].mean()
    # Half of the random actions differ from the best one: 1 - (0.4 * 0.1 + 0.3 * 0.01 + 0.3 * 0.5) / 2.
    assert mean == pytest.approx(0.9035, abs=0.02)


def test_exploit_is_greedy_unless_configured_otherwise() -> None:
    agent, parameters_client = agent_with([0.0, 2.0, 1.0], 8000, exploit=True)
    assert set(agent.reset(nothing(8000))[0].tolist()) == {1}
    assert parameters_client.scalars == []
    agent, _ = agent_with([0.0, 1.0], 8000, exploit=True, greedy_exploit=False, exploit_epsilon=0.2)
    assert agent.reset(nothing(8000))[0].mean() == pytest.approx(0.9, abs=0.02)


def test_two_connections_draw_separate_epsilons() -> None:
    config = ASYNC_Q.configure(LINEAR | {"exploration_frames": 0, "update_interval": 1})

    def epsilon(first_actor: int) -> float:
        agent, parameters_client = make_agent(
            ASYNC_Q, config, VECTOR, Discrete(2), environments=4, first_actor=first_actor
        )
        live(agent, RandomEnvironments(VECTOR, Discrete(2), 4), 2)
        return next(value for name, value in parameters_client.scalars if name == "epsilon")

    drawn = [drawn_epsilons(0, range(first, first + 4), [0.1, 0.01, 0.5], [0.4, 0.3, 0.3]).mean() for first in (0, 4)]
    assert [epsilon(0), epsilon(4)] == pytest.approx(drawn)
    assert drawn[0] != drawn[1]


def test_value_of_held_out_states_is_that_of_best_actions() -> None:
    agent, parameters_client = agent_with([0.5, 2.0, 1.0], 4, held_out_states=3, update_interval=2, max_global_step=1)
    live(agent, RandomEnvironments(VECTOR, Discrete(3), 4), 20)
    seen = [value for name, value in parameters_client.scalars if name == "q/held_out"]
    assert seen == [pytest.approx(2.0, abs=0.1)], "recorded at intervals, not with every update"


def test_held_out_states_are_normalised_at_evaluation() -> None:
    space = Box(0, 100, shape=(1,))
    config = ASYNC_Q.configure(LINEAR | {"normalize_observations": True, "held_out_states": 2, "update_interval": 8})
    server = ASYNC_Q.ParameterServer(config, space, Discrete(2))
    parameters = np.array([1, 1, 0, 0], np.float32)  # the value of both actions is the observation
    parameters_client = FakeParameters(parameters, statistics=server.statistics(), target=server.target_interval())
    agent, _ = make_agent(ASYNC_Q, config, space, Discrete(2), environments=2, parameters=parameters_client)
    live(agent, RandomEnvironments(space, Discrete(2), 2), 12)
    (seen,) = [value for name, value in parameters_client.scalars if name == "q/held_out"]
    assert abs(seen) < 3, "the raw value is about 50, and 10 is the limit of clipping"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"final_epsilons": [0.1], "final_epsilon_probabilities": [0.5, 0.5]}, "has 1 numbers"),
        ({"final_epsilons": [0.1], "final_epsilon_probabilities": [0]}, "are all 0"),
        ({"final_epsilons": [1.5], "final_epsilon_probabilities": [1]}, "less than or equal to 1"),
        ({"errors": "hubert"}, "huber"),
        ({"lstm": True}, "lstm"),
        ({"target_intervall": 5}, "target_interval"),
    ],
)
def test_contradictory_keys_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        ASYNC_Q.configure(LINEAR | keys)


def test_sarsa_samples_the_action_after_a_truncated_episode() -> None:
    """The action at the final observation is sampled: half of the samples are not the best action."""
    algorithm, n = load_algorithm("async_sarsa", Path()), 4000
    keys = {"path": "async_sarsa", "update_interval": 1, "rewards_gamma": 0.5}
    config, parameters = algorithm.configure(LINEAR | keys), np.array([0, 0, 0, 0, 0, 1], np.float32)
    parameters_client = FakeParameters(
        parameters, target=algorithm.ParameterServer(config, VECTOR, Discrete(2)).target_interval()
    )
    agent, _ = make_agent(algorithm, config, VECTOR, Discrete(2), environments=n, parameters=parameters_client)
    agent.reset(nothing(n))
    never, always = np.zeros(n, np.bool_), np.ones(n, np.bool_)
    agent.step(StepResult(np.zeros(n), nothing(n), never, always, never.copy(), nothing(n)))
    agent.learn()
    # Values 0 and 1, targets 0 and 0.5: (0 + 0.25 + 1 + 0.25) / 4. With the best action: (0.25 + 0.25) / 2.
    assert dict(parameters_client.scalars)["loss"] == pytest.approx(0.375, abs=0.02)


def test_sarsa_refuses_double_estimates() -> None:
    with pytest.raises(ConfigurationError, match="double"):
        load_algorithm("async_sarsa", Path()).configure({"path": "async_sarsa", "double": True})


def test_refusal_names_the_algorithm_and_the_space() -> None:
    sentence = N_STEP_Q.Agent.refusal(N_STEP_Q.configure({"path": "n_step_q"}), VECTOR, MultiDiscrete([2, 3]))
    assert sentence is not None
    assert sentence.startswith("n_step_q cannot handle the action space MultiDiscrete([2, 3])")


def test_policy_graph_names_the_head_of_actions() -> None:
    for dueling, head in ((False, "q"), (True, "advantage")):
        config = ASYNC_Q.configure(LINEAR | {"dueling": dueling})
        agent, _ = make_agent(ASYNC_Q, config, VECTOR, Discrete(3, start=5), exploit=True)
        graph = agent.policy_graph()
        assert graph is not None
        assert graph.action == (LargestOutput(head, 5),)
