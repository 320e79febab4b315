"""Pushed gradients, compared with independently computed gradients for given episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, Space, load_algorithm
from relaax.algorithm_base.testing import FakeParameters, make_agent
from support.reference_a3c import Forward, a3c_gradient, convolution_network, dense_network, pixel_network
from support.scene import Script

DA3C = load_algorithm("da3c", Path())
GAMMA, BETA, WEIGHT = 0.9, 0.05, 0.25


class Scene(Script):
    """An agent, its parameters client, and the actions it returned."""

    def __init__(
        self, observation_space: Space, action_space: Space, environments: int, theta: int, **keys: Any
    ) -> None:
        section = {
            "path": "da3c",
            "rewards_gamma": GAMMA,
            "entropy_beta": BETA,
            "value_loss_weight": WEIGHT,
            "RMSProp": {"gradient_norm_clipping": None},
            "overlap": False,
            "normalize_rewards": None,
        }
        keys["network"] = {"separate": False} | keys.get("network", {})
        self.theta = np.random.default_rng(7).normal(size=theta).astype(np.float32)
        if keys["network"].get("convolutions"):
            self.theta = np.abs(self.theta)  # every filter is active, so every pixel affects the outputs
        self.parameters_client = FakeParameters(self.theta, learning_rate=0.5)
        agent, _ = make_agent(
            DA3C,
            DA3C.configure(section | keys),
            observation_space,
            action_space,
            environments=environments,
            parameters=self.parameters_client,
        )
        super().__init__(agent, environments)


def expected(forward: Forward, theta: np.ndarray, examples: Sequence[tuple[Any, int, float]], n: int) -> np.ndarray:
    """Return the gradient of the examples (input, action, return)."""
    inputs, actions, returns = (list(column) for column in zip(*examples, strict=True))
    return a3c_gradient(
        forward, theta, np.array(inputs, np.float64), actions, returns, environments=n, value_weight=WEIGHT, beta=BETA
    )


def close(found: np.ndarray | None, wanted: np.ndarray) -> None:
    assert found is not None
    assert np.abs(wanted).max() > 1e-2
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-5)


# Vectors: observations of two numbers, one hidden layer of three. 2*3 + 3 + 3*2 + 2 + 3 + 1 = 21 parameters.
VECTOR, HIDDEN = Box(-9, 9, shape=(2,)), {"network": {"dense": [3]}}
NETWORK = dense_network(2, 3, 2)
O = np.random.default_rng(1).normal(size=(9, 2, 2)).astype(np.float32)  # noqa: E741 - observations [time, environment]
F = np.random.default_rng(2).normal(size=(2, 2)).astype(np.float32)  # final observations


def vector_scene(length: int, environments: int = 2, **keys: Any) -> Scene:
    return Scene(VECTOR, Discrete(2), environments, 21, episode_len=length, **HIDDEN, **keys)


def value(theta: np.ndarray, observation: np.ndarray) -> float:
    return float(NETWORK(theta.astype(np.float64), observation[None].astype(np.float64))[1][0])


def test_gradient_of_a_rollout_without_an_end() -> None:
    scene = vector_scene(3)
    scene.reset(O[0])
    scene.step([1, -2], O[1])
    scene.step([0, 3], O[2])
    assert scene.parameters_client.pushes == []
    scene.step([5, 0.5], O[3])
    (push,) = scene.parameters_client.pushes
    examples = []
    for i, (r0, r1, r2) in enumerate([(1, 0, 5), (-2, 3, 0.5)]):
        big_r2 = r2 + GAMMA * value(scene.theta, O[3][i])
        big_r1 = r1 + GAMMA * big_r2
        big_r0 = r0 + GAMMA * big_r1
        examples += [(O[t][i], scene.actions[t][i], r) for t, r in enumerate([big_r0, big_r1, big_r2])]
    close(push.gradient, expected(NETWORK, scene.theta, examples, n=2))
    assert push.env_steps == 6


def test_push_records_loss_and_gradient_norm() -> None:
    scene = vector_scene(1, environments=1)
    scene.reset(O[0][:1])
    scene.step([2.0], O[1][:1])
    logits, values = NETWORK(scene.theta.astype(np.float64), O[0][:1])
    pi = np.exp(logits[0]) / np.exp(logits[0]).sum()
    advantage = 2.0 + GAMMA * value(scene.theta, O[1][0]) - values[0]
    scalars = dict(scene.parameters_client.scalars)
    assert scalars["loss/policy"] == pytest.approx(-np.log(pi[scene.actions[0][0]]) * advantage, rel=1e-4)
    assert scalars["loss/value"] == pytest.approx(advantage**2, rel=1e-4)
    assert scalars["loss/entropy"] == pytest.approx(-(pi * np.log(pi)).sum(), rel=1e-4)
    assert scalars["gradient/norm"] == pytest.approx(
        np.linalg.norm(scene.parameters_client.pushes[0].gradient), rel=1e-4
    )
    whole = scalars["loss/policy"] + WEIGHT * scalars["loss/value"] - BETA * scalars["loss/entropy"]
    assert scene.parameters_client.pushes[0].loss == pytest.approx(whole)


def test_only_truncated_episodes_bootstrap_the_final_value() -> None:
    scene = vector_scene(2)
    scene.reset(O[0])
    # Environment 0 terminates, environment 1 is truncated. Both continue with new episodes.
    scene.step([1, -2], O[1], terminated=[0], truncated=[1], final=F)
    scene.step([4, 8], O[2])
    later = [r + GAMMA * value(scene.theta, O[2][i]) for i, r in enumerate([4, 8])]
    examples = [
        (O[0][0], scene.actions[0][0], 1.0),
        (O[0][1], scene.actions[0][1], -2.0 + GAMMA * value(scene.theta, F[1])),
        (O[1][0], scene.actions[1][0], later[0]),
        (O[1][1], scene.actions[1][1], later[1]),
    ]
    close(scene.parameters_client.pushes[0].gradient, expected(NETWORK, scene.theta, examples, n=2))
    assert scene.parameters_client.pushes[0].env_steps == 4


@pytest.mark.parametrize(("truncated", "rest"), [([], 0.0), ([0], 1.0)])
def test_end_at_the_last_step_of_a_rollout(truncated: list[int], rest: float) -> None:
    scene = vector_scene(1, environments=1)
    scene.reset(O[0][:1])
    scene.step([3], O[1][:1], terminated=[] if truncated else [0], truncated=truncated, final=F[:1])
    target = 3.0 + rest * GAMMA * value(scene.theta, F[0])
    close(
        scene.parameters_client.pushes[0].gradient,
        expected(NETWORK, scene.theta, [(O[0][0], scene.actions[0][0], target)], n=1),
    )


def test_terminated_takes_precedence_over_truncated() -> None:
    scene = vector_scene(1, environments=1)
    scene.reset(O[0][:1])
    scene.step([3], O[1][:1], terminated=[0], truncated=[0], final=F[:1])
    close(
        scene.parameters_client.pushes[0].gradient,
        expected(NETWORK, scene.theta, [(O[0][0], scene.actions[0][0], 3.0)], n=1),
    )


def test_void_transitions_are_ignored() -> None:
    scene = vector_scene(3)
    scene.reset(O[0])
    scene.step([1, -2], O[1], terminated=[0], final=O[1])  # NEXT_STEP: the observation is the final one
    scene.step([1e30, 3], O[2], first=[0])  # environment 0 begins an episode here
    scene.step([5, 0.5], O[3])
    push = scene.parameters_client.pushes[0]
    ends = [value(scene.theta, O[3][i]) for i in range(2)]
    r2 = 0.5 + GAMMA * ends[1]
    examples = [
        (O[0][0], scene.actions[0][0], 1.0),
        (O[2][0], scene.actions[2][0], 5 + GAMMA * ends[0]),
        (O[0][1], scene.actions[0][1], -2 + GAMMA * (3 + GAMMA * r2)),
        (O[1][1], scene.actions[1][1], 3 + GAMMA * r2),
        (O[2][1], scene.actions[2][1], r2),
    ]
    close(push.gradient, expected(NETWORK, scene.theta, examples, n=2))
    assert push.env_steps == 5


def test_rollout_may_begin_with_a_void_transition() -> None:
    scene = vector_scene(1, environments=1)
    scene.reset(O[0][:1])
    scene.step([3], O[1][:1], terminated=[0], final=O[1][:1])
    scene.step([7], O[2][:1], first=[0])
    assert [push.env_steps for push in scene.parameters_client.pushes] == [1, 0]
    second = scene.parameters_client.pushes[1].gradient
    assert second is None or not second.any()


def test_next_rollout_uses_the_parameters_of_the_push() -> None:
    scene = vector_scene(1, environments=1)
    scene.reset(O[0][:1])
    scene.step([3], O[1][:1])
    updated = scene.parameters_client.parameters
    assert not np.allclose(updated, scene.theta)
    # Other workers push during the rollout. This worker continues with its parameters.
    scene.parameters_client.publish(np.zeros_like(updated))
    scene.step([-1], O[2][:1])
    first, second = scene.parameters_client.pushes
    assert (first.base.version, second.base.version) == (0, 1)
    target = -1 + GAMMA * value(updated, O[2][0])
    close(second.gradient, expected(NETWORK, updated, [(O[1][0], scene.actions[1][0], target)], n=1))
    assert scene.parameters_client.pulls == 1, "the reply to a push has the parameters"


def test_parameters_change_only_between_rollouts() -> None:
    scene = vector_scene(3)
    scene.reset(O[0])
    scene.step([1, -2], O[1])
    scene.parameters_client.publish(np.zeros_like(scene.theta))
    scene.step([0, 3], O[2])
    scene.step([5, 0.5], O[3])
    assert scene.parameters_client.pulls == 1
    assert scene.parameters_client.pushes[0].base.version == 0
    close(scene.parameters_client.pushes[0].gradient, three_steps(scene))


def three_steps(scene: Scene) -> np.ndarray:
    """Return the gradient for rewards (1, 0, 5) and (-2, 3, 0.5) with the scene's initial parameters."""
    examples = []
    for i, rewards in enumerate([(1, 0, 5), (-2, 3, 0.5)]):
        for t in range(3):
            target = sum(GAMMA ** (k - t) * rewards[k] for k in range(t, 3))
            target += GAMMA ** (3 - t) * value(scene.theta, O[3][i])
            examples.append((O[t][i], scene.actions[t][i], target))
    return expected(NETWORK, scene.theta, examples, n=2)


def test_reset_discards_the_current_rollout() -> None:
    scene = vector_scene(2, environments=1)
    scene.reset(O[5][:1])
    scene.step([100], O[6][:1])
    scene.actions.clear()
    scene.reset(O[0][:1])
    scene.step([1], O[1][:1])
    assert scene.parameters_client.pushes == []
    scene.step([2], O[2][:1])
    r1 = 2 + GAMMA * value(scene.theta, O[2][0])
    examples = [(O[0][0], scene.actions[0][0], 1 + GAMMA * r1), (O[1][0], scene.actions[1][0], r1)]
    close(scene.parameters_client.pushes[0].gradient, expected(NETWORK, scene.theta, examples, n=1))
    assert scene.parameters_client.pushes[0].env_steps == 2


def test_gradient_above_the_norm_is_clipped() -> None:
    scene = vector_scene(3, RMSProp={"gradient_norm_clipping": 0.125})
    scene.reset(O[0])
    scene.step([1, -2], O[1])
    scene.step([0, 3], O[2])
    scene.step([5, 0.5], O[3])
    whole = three_steps(scene)
    assert np.linalg.norm(whole) > 1
    gradient = scene.parameters_client.pushes[0].gradient
    np.testing.assert_allclose(gradient, whole * 0.125 / np.linalg.norm(whole), rtol=1e-3, atol=1e-6)
    assert dict(scene.parameters_client.scalars)["gradient/norm"] == pytest.approx(np.linalg.norm(whole), rel=1e-3)


def test_gradient_below_the_norm_is_unchanged() -> None:
    scene = vector_scene(3, RMSProp={"gradient_norm_clipping": 1000.0})
    scene.reset(O[0])
    scene.step([1, -2], O[1])
    scene.step([0, 3], O[2])
    scene.step([5, 0.5], O[3])
    close(scene.parameters_client.pushes[0].gradient, three_steps(scene))


@pytest.mark.parametrize(("clipping", "learned"), [(None, 5.0), (2.0, 2.0), ("auto", 5.0)])
def test_rewards_of_vectors_are_clipped_only_if_set(clipping: Any, learned: float) -> None:
    scene = vector_scene(1, reward_clipping=clipping)
    scene.reset(O[0])
    scene.step([5, -5], O[1])
    examples = [
        (O[0][i], scene.actions[0][i], sign * learned + GAMMA * value(scene.theta, O[1][i]))
        for i, sign in enumerate([1, -1])
    ]
    close(scene.parameters_client.pushes[0].gradient, expected(NETWORK, scene.theta, examples, n=2))


def test_actions_may_start_at_any_number() -> None:
    scene = Scene(VECTOR, Discrete(2, start=-7), 2, 21, episode_len=1, **HIDDEN)
    scene.reset(O[0])
    scene.step([5, -5], O[1])
    assert {action for actions in scene.actions for action in actions} <= {-7, -6}
    examples = [
        (O[0][i], scene.actions[0][i] + 7, r + GAMMA * value(scene.theta, O[1][i])) for i, r in enumerate([5, -5])
    ]
    close(scene.parameters_client.pushes[0].gradient, expected(NETWORK, scene.theta, examples, n=2))


# Images: 4x4 pixels of one shade, in stacks of two frames.
IMAGE = Box(0, 255, shape=(4, 4), dtype=np.uint8)
CONVOLUTION = {"network": {"convolutions": [{"filters": 2, "kernel": 2, "stride": 2}], "dense": []}}
FLAT = {"network": {"convolutions": [], "dense": []}}
NETWORKS = [
    # 2*2*2*2 + 2 + 8*2 + 2 + 8 + 1 = 45 and 32*2 + 2 + 32 + 1 = 99 parameters.
    pytest.param(CONVOLUTION, convolution_network(4, 2, 2, 2, 2, 2), 45, id="convolution"),
    pytest.param(FLAT, pixel_network(32, 2), 99, id="linear"),
]


def frame(*shades: int) -> np.ndarray:
    """Return one frame for each environment."""
    return np.array([np.full((4, 4), shade) for shade in shades], np.uint8)


def stack(older: int, newer: int) -> np.ndarray:
    return np.stack([np.full((4, 4), older), np.full((4, 4), newer)], axis=-1)


@pytest.mark.parametrize(("keys", "network", "parameters"), NETWORKS)
def test_frames_are_not_stacked_across_episodes(keys: dict[str, Any], network: Forward, parameters: int) -> None:
    scene = Scene(IMAGE, Discrete(2), 2, parameters, episode_len=3, history_len=2, **keys)

    def v(*shades: int) -> float:
        return float(network(scene.theta.astype(np.float64), stack(*shades)[None])[1][0])

    scene.reset(frame(10, 110))
    # Environment 0 terminates, and its next episode begins with 30. Environment 1 is truncated at 99, and its next
    # episode begins with 130.
    scene.step([5, -0.5], frame(30, 130), terminated=[0], truncated=[1], final=frame(77, 99))
    scene.step([0.25, 7], frame(40, 140))
    scene.step([-3, 0], frame(50, 150))
    gradient = scene.parameters_client.pushes[0].gradient
    left2 = -1 + GAMMA * v(40, 50)  # rewards of images are clipped to -1..1
    right2 = 0 + GAMMA * v(140, 150)
    a = scene.actions
    examples = [
        (stack(10, 10), a[0][0], 1.0),
        (stack(30, 30), a[1][0], 0.25 + GAMMA * left2),
        (stack(30, 40), a[2][0], left2),
        # The final frame is stacked on the frame of its own episode, not on that of the next.
        (stack(110, 110), a[0][1], -0.5 + GAMMA * v(110, 99)),
        (stack(130, 130), a[1][1], 1 + GAMMA * right2),
        (stack(130, 140), a[2][1], right2),
    ]
    close(gradient, expected(network, scene.theta, examples, n=2))


@pytest.mark.parametrize(("keys", "network", "parameters"), NETWORKS)
def test_frames_are_stacked_with_autoreset_next_step(keys: dict[str, Any], network: Forward, parameters: int) -> None:
    scene = Scene(IMAGE, Discrete(2), 1, parameters, episode_len=4, history_len=2, **keys)

    def v(*shades: int) -> float:
        return float(network(scene.theta.astype(np.float64), stack(*shades)[None])[1][0])

    scene.reset(frame(10))
    scene.step([0.5], frame(20))
    scene.step([0.5], frame(30), truncated=[0], final=frame(30))
    scene.step([1], frame(200), first=[0])
    scene.step([0.25], frame(210))
    a = scene.actions
    r1 = 0.5 + GAMMA * v(20, 30)
    examples = [
        (stack(10, 10), a[0][0], 0.5 + GAMMA * r1),
        (stack(10, 20), a[1][0], r1),
        (stack(200, 200), a[3][0], 0.25 + GAMMA * v(200, 210)),
    ]
    close(scene.parameters_client.pushes[0].gradient, expected(network, scene.theta, examples, n=1))
    assert scene.parameters_client.pushes[0].env_steps == 3


def test_reset_clears_the_frames() -> None:
    network = pixel_network(32, 2)
    scene = Scene(IMAGE, Discrete(2), 1, 99, episode_len=1, history_len=2, **FLAT)
    scene.reset(frame(255))
    scene.actions.clear()
    scene.reset(frame(0))
    scene.step([1], frame(100))
    target = 1 + GAMMA * network(scene.theta.astype(np.float64), stack(0, 100)[None])[1][0]
    close(
        scene.parameters_client.pushes[0].gradient,
        expected(network, scene.theta, [(stack(0, 0), scene.actions[0][0], target)], n=1),
    )
