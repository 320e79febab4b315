from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, Discrete, StepResult, load_algorithm
from relaax.algorithm_base.network import IMAGE, normalized_statistics
from relaax.algorithm_base.normalization import MEAN_IMAGE_FRAMES
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.parameters.moments import Moments

SPACE = Box(0, 255, shape=(2, 2), dtype="uint8")
KEYS: dict[str, Any] = {"history_len": 2, "subtract_mean_image": True, "network": {"dense": [], "convolutions": []}}


def agent_with(name: str = "da3c", exploit: bool = False, seen: int = 0, **keys: Any) -> tuple[AgentBase, Any]:
    """Return an agent of two environments and its parameters, after other workers pushed `seen` black frames."""
    algorithm = load_algorithm(name, Path())
    config = algorithm.configure({"path": name, **KEYS, **keys})
    server = algorithm.ParameterServer(config, SPACE, Discrete(2))
    parameters_client = FakeParameters(
        server.initial_parameters(0), statistics=server.statistics(), target=server.target_interval()
    )
    if seen:
        parameters_client.publish(parameters_client.parameters, {IMAGE: Moments(seen, np.zeros(4), np.zeros(4))})
    agent, _ = make_agent(
        algorithm, config, SPACE, Discrete(2), environments=2, exploit=exploit, parameters=parameters_client
    )
    return agent, parameters_client


def frames(*values: int) -> list[np.ndarray]:
    """Return one frame for each environment; all its pixels have the given value."""
    return [np.stack([np.full((2, 2), value, np.uint8) for value in values])]


def step(observations: list[np.ndarray], first: tuple[int, ...] = ()) -> StepResult:
    nowhere = np.zeros(2, np.bool_)
    mask = np.isin(np.arange(2), first) if first else nowhere
    return StepResult(np.zeros(2), observations, nowhere, nowhere, mask)


def inputs_of(agent: Any) -> list[list[float]]:
    """Return the upper left pixel of the newest inputs minus the mean, by environment, oldest frame first."""
    assert agent._inputs.newest.dtype == np.uint8
    return (agent._inputs.newest[:, 0, 0] - agent._inputs.mean_image[0, 0]).round(3).tolist()


@pytest.mark.parametrize(("name", "key"), [("da3c", "episode_len"), ("async_q", "update_interval")])
def test_network_input_is_the_difference_from_the_mean(name: str, key: str) -> None:
    agent, _ = agent_with(name, **{key: 1})
    agent.reset(frames(100, 200))
    assert inputs_of(agent) == [[100, 100], [200, 200]], "the mean has no frames yet"
    agent.step(step(frames(150, 250)))
    agent.learn()  # the mean of 100 and 200 is 150
    assert inputs_of(agent) == [[-50, 0], [50, 100]]
    agent.step(step(frames(175, 175)))
    agent.learn()  # the mean of 100, 200, 150 and 250 is 175
    assert inputs_of(agent) == [[-25, 0], [75, 0]]


def test_mean_does_not_change_within_a_rollout() -> None:
    agent, _ = agent_with(episode_len=2)
    agent.reset(frames(100, 200))
    agent.step(step(frames(150, 250)))
    agent.learn()
    assert inputs_of(agent) == [[100, 150], [200, 250]], "the mean has no frames yet"
    agent.step(step(frames(150, 250)))
    agent.learn()
    assert inputs_of(agent) == [[-25, -25], [75, 75]], "the mean of 100, 200, 150 and 250 is 175"


@pytest.mark.parametrize("name", ["da3c", "gorila"])
def test_network_gets_the_mean_with_its_parameters(name: str) -> None:
    agent, parameters_client = agent_with(name, exploit=True)
    agent.reset(frames(100, 200))
    before = outputs_of(agent)
    parameters_client.publish(parameters_client.parameters, {IMAGE: Moments(1, np.full(4, 255.0), np.zeros(4))})
    agent._exchange._pulled_at = 0.0  # an agent in exploit mode pulls once a second
    agent.step(step(frames(100, 200)))
    after = outputs_of(agent)
    assert all(not np.array_equal(before[head], after[head]) for head in before)


def outputs_of(agent: Any) -> dict[str, Any]:
    outputs: dict[str, Any] = agent._actor.act(agent._inputs.newest, agent._inputs.state)[0]
    return outputs


def test_void_frames_do_not_change_the_mean() -> None:
    agent, _ = agent_with(episode_len=1)
    agent.reset(frames(100, 200))
    agent.step(step(frames(0, 0), first=(1,)))
    agent.learn()
    agent.step(step(frames(0, 0)))
    agent.learn()
    assert agent._inputs.mean_image[0, 0, 0] == pytest.approx(100 / 3), "of 100, 0 and 0; the step from 200 was void"


def test_mean_of_all_workers_is_fixed_once_complete() -> None:
    agent, parameters_client = agent_with(seen=MEAN_IMAGE_FRAMES, episode_len=1)
    for _ in range(3):
        agent.reset(frames(100, 200))
        agent.step(step(frames(150, 250)))
        assert inputs_of(agent) == [[100, 150], [200, 250]], "the frames of other workers are black"
    assert all(not push.statistics for push in parameters_client.pushes)
    assert parameters_client.statistics[IMAGE].count == MEAN_IMAGE_FRAMES


def test_frames_are_pushed_until_the_mean_is_complete() -> None:
    agent, parameters_client = agent_with(seen=MEAN_IMAGE_FRAMES - 3, episode_len=1)
    agent.reset(frames(100, 200))
    for _ in range(4):
        agent.step(step(frames(100, 200)))
        agent.learn()
    assert [push.statistics[IMAGE].count if push.statistics else 0 for push in parameters_client.pushes] == [2, 2, 0, 0]


def test_exploit_agent_sends_no_frames() -> None:
    agent, parameters_client = agent_with(exploit=True)
    agent.reset(frames(100, 200))
    agent.step(step(frames(150, 250)))
    assert inputs_of(agent) == [[100, 150], [200, 250]]
    assert parameters_client.statistics[IMAGE].count == 0


def test_only_images_have_a_mean_image() -> None:
    assert normalized_statistics(SPACE, True, None, mean_image=True) == {IMAGE: 4}
    assert normalized_statistics(Box(0, 255, (3, 2, 2), "uint8"), False, None, mean_image=True) == {IMAGE: 12}
    assert IMAGE not in normalized_statistics(Box(-1, 1, (3,)), True, None, mean_image=True)


def test_too_large_mean_image_is_refused_with_the_key() -> None:
    algorithm = load_algorithm("da3c", Path())
    config = algorithm.configure({"path": "da3c", "subtract_mean_image": True})
    sentence = algorithm.Agent.refusal(config, Box(0, 255, (210, 160, 3), "uint8"), Discrete(2))
    assert sentence is not None
    assert "set algorithm.subtract_mean_image to false" in sentence
