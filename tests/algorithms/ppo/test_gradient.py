"""The pushes of ppo, compared with TensorFlow's gradient of the paper's loss over known minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, load_algorithm
from support import reference_actor_critic as reference
from support.reference_actor_critic import Memory, Network
from support.reference_ppo import Steps, advantages_of, ppo_gradient
from support.scene import BETA, GAMMA, WEIGHT, Scene

PPO = load_algorithm("ppo", Path())
VECTOR = Box(-9, 9, shape=(2,))
DISCRETE = Network(features=2, hidden=3, cells=0, trunks=[{"policy": 2, "value": 1}])
SEPARATE = Network(features=2, hidden=3, cells=0, trunks=[{"policy": 2}, {"value": 1}])
LSTM = Network(features=2, hidden=3, cells=2, trunks=[{"policy": 2, "value": 1}])
REAL = Network(features=2, hidden=3, cells=0, trunks=[{"mean": 1, "variance": 1, "value": 1}])
O = np.random.default_rng(1).normal(size=(9, 3, 2)).astype(np.float32)  # noqa: E741 - observations [time, environment]
FINAL = np.random.default_rng(2).normal(size=(3, 2)).astype(np.float32)
LAMBDA, CLIP, LIMIT, LARGE = 0.8, 0.1, 0.3, 0.02
VOID = 1e9


class PpoScene(Scene):
    """A scene of ppo, with reference computations of what the agent knows."""

    def __init__(self, environments: int, network: Network = DISCRETE, **keys: Any) -> None:
        actions = Box(shape=(1,)) if network is REAL else Discrete(2)
        every = {
            "episode_len": 3,
            "gae_lambda": LAMBDA,
            "clip": CLIP,
            "epochs": 1,
            "minibatches": 1,
            "normalize_advantages": False,
            "Adam": {"gradient_norm_clipping": None},
        }
        super().__init__(PPO, VECTOR, actions, environments, network, **every | keys)

    @property
    def made(self) -> list[Any]:
        return self.parameters_client.pushes

    def steps(
        self,
        inputs: Sequence[Any],
        actions: Sequence[Any],
        rewards: Sequence[float],
        end: float | None,
        memory: Memory | None = None,
        theta: np.ndarray | None = None,
        old: Sequence[float] | None = None,
    ) -> Steps:
        """Return steps with rewards, and the value after them, 0 if None. `theta` chose the actions."""
        theta = self.theta if theta is None else theta
        outputs, _ = self.network.run(theta, inputs, memory)
        values = [float(out["value"][0]) for out in outputs]
        likelihoods = [reference.likelihood(out, a)[0] for out, a in zip(outputs, actions, strict=True)]
        discounts = [GAMMA] * len(rewards)
        advantages = advantages_of(rewards, discounts, [*values, end or 0.0], LAMBDA)
        return Steps(inputs, actions, likelihoods if old is None else old, values, advantages, memory)

    def expected(self, push: int, sequences: Sequence[Steps], **keys: Any) -> tuple[np.ndarray, dict[str, float]]:
        theta = self.made[push].base.parameters
        return ppo_gradient(self.network, theta, sequences, clip=CLIP, value_weight=WEIGHT, beta=BETA, **keys)

    def check(self, push: int, sequences: Sequence[Steps], **keys: Any) -> dict[str, float]:
        """Check the gradient of a push over a minibatch of these steps. Return the metrics of the reference."""
        wanted, metrics = self.expected(push, sequences, **keys)
        close(self.made[push].gradient, wanted)
        return metrics


def close(found: Any, wanted: np.ndarray) -> None:
    assert np.abs(wanted).max() > 1e-3
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4 * np.abs(wanted).max())


def play(s: PpoScene, rows: int = 3) -> list[Steps]:
    """Play one rollout in two environments. Return the steps of both."""
    rewards = np.random.default_rng(3).normal(size=(rows, 2)).round(1).tolist()
    s.reset(O[0, :2])
    for t in range(rows):
        s.step(rewards[t], O[t + 1, :2])
    return [
        s.steps(O[:rows, i], s.act(i, *range(rows)), [r[i] for r in rewards], s.value(O[: rows + 1, i]))
        for i in range(2)
    ]


NETWORKS = pytest.mark.parametrize("network", [DISCRETE, SEPARATE, LSTM, REAL], ids=["one", "two", "lstm", "real"])
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "normalized": ({"normalize_advantages": True}, {"normalize": True}),
    "value clipped": ({"value_clipping": LIMIT}, {"value_clip": LIMIT}),
}


@NETWORKS
@pytest.mark.parametrize("option", OPTIONS)
def test_every_epoch_is_the_gradient_of_the_clipped_loss(network: Network, option: str) -> None:
    keys, of_reference = OPTIONS[option]
    s = PpoScene(2, network, epochs=4, learning_rate=1.5, **keys)
    sequences = play(s)
    assert len(s.made) == 4
    metrics = [s.check(push, sequences, **of_reference) for push in range(4)]
    assert metrics[0]["policy/clipped"] == 0
    assert max(each["policy/clipped"] for each in metrics) > 0, "some step must be clipped"
    found: dict[str, list[float]] = {}
    for name, value in s.parameters_client.scalars:
        found.setdefault(name, []).append(value)
    for name in metrics[0]:
        assert found[name] == pytest.approx([each[name] for each in metrics], rel=1e-3, abs=1e-5)
    values, targets = np.array([(v, v + a) for q in sequences for v, a in zip(q.values, q.advantages, strict=True)]).T
    assert found["value/explained_variance"] == pytest.approx([1 - (targets - values).var() / targets.var()], rel=1e-3)


def test_value_clip_changes_the_gradient() -> None:
    gradients = []
    for limit in (None, LIMIT):
        s = PpoScene(2, epochs=2, value_clipping=limit)
        play(s)
        gradients.append(s.made[1].gradient)
    assert np.abs(gradients[0] - gradients[1]).max() > 1e-3


def test_episodes_end_inside_a_rollout() -> None:
    s = PpoScene(2, SEPARATE)
    s.reset(O[0, :2])
    s.step([1, -2], O[1, :2])
    s.step([3, 0.5], O[2, :2], terminated=[0], truncated=[1], final=FINAL[:2])
    s.step([-1, 4], O[3, :2])
    cut_off = s.value([FINAL[1]])
    ends = [s.value([O[3, i]]) for i in range(2)]
    s.check(
        0,
        [
            s.steps(O[:2, 0], s.act(0, 0, 1), [1, 3], None),
            s.steps(O[2:3, 0], s.act(0, 2), [-1], ends[0]),
            s.steps(O[:2, 1], s.act(1, 0, 1), [-2, 0.5], cut_off),
            s.steps(O[2:3, 1], s.act(1, 2), [4], ends[1]),
        ],
    )


def test_void_steps_are_in_no_minibatch() -> None:
    s = PpoScene(2, learning_rate=0.0, minibatches=5, normalize_advantages=True)
    s.reset(O[0, :2])
    s.step([1, -2], O[1, :2], terminated=[1], final=O[1, :2])
    s.step([3, VOID], O[2, :2], first=[1])
    s.step([-1, 4], O[3, :2])
    assert [push.env_steps for push in s.made] == [5, 0, 0, 0, 0]
    sequences = [
        s.steps(O[:3, 0], s.act(0, 0, 1, 2), [1, 3, -1], s.value(O[:4, 0])),
        s.steps(O[:1, 1], s.act(1, 0), [-2], None),
        s.steps(O[2:3, 1], s.act(1, 2), [4], s.value(O[2:4, 1])),
    ]
    # A single step is not normalised.
    close(sum(push.gradient for push in s.made) / 5, s.expected(0, sequences)[0])


@pytest.mark.parametrize("minibatches", [1, 2, 3, 6, 50])
def test_minibatches_of_an_epoch_cover_a_rollout_once(minibatches: int) -> None:
    s = PpoScene(2, epochs=2, minibatches=minibatches, learning_rate=0.0)
    sequences = play(s)
    count = min(minibatches, 6)
    assert len(s.made) == 2 * count
    whole, _ = s.expected(0, sequences)
    epochs = [np.array([push.gradient for push in s.made[e * count : (e + 1) * count]]) for e in range(2)]
    for epoch in epochs:
        close(epoch.mean(axis=0), whole)
    if 1 < count < 6:
        assert not np.allclose(epochs[0][0], epochs[1][0], atol=1e-5), "the order must be drawn for each epoch"


def test_lstm_minibatches_are_whole_environments() -> None:
    s = PpoScene(3, LSTM, minibatches=50, learning_rate=0.0)
    s.reset(O[0])
    for t in range(6):
        s.step([1 - t, t - 2, 0.5 * t], O[t + 1])
    assert len(s.made) == 6
    wanted = []
    for i in range(3):
        memory = s.network.run(s.theta, O[:3, i])[1]
        rewards = [[1 - t, t - 2, 0.5 * t][i] for t in range(3, 6)]
        steps = s.steps(O[3:6, i], s.act(i, 3, 4, 5), rewards, s.value(O[3:7, i], memory), memory)
        wanted.append(s.expected(3, [steps])[0])
    for push in s.made[3:]:
        errors = [np.abs(push.gradient - gradient).max() for gradient in wanted]
        close(push.gradient, wanted.pop(int(np.argmin(errors))))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("network", [DISCRETE, LSTM], ids=["feed-forward", "lstm"])
def test_ratio_is_to_the_policy_that_acted(network: Network, overlap: bool) -> None:
    """With `overlap`, the first action of the second rollout was chosen before the updates of the first one."""
    s = PpoScene(1, network, episode_len=2, epochs=2, overlap=overlap, learning_rate=0.3)
    s.reset(O[0, :1])
    for t, reward in enumerate([1, -2, 3, 0.5, 4]):
        s.step([reward], O[t + 1, :1])
    assert len(s.made) == 4
    acted = s.made[2].base.parameters
    assert np.abs(acted - s.theta).max() > 0.05
    memory = s.network.run(s.theta, O[:2, 0])[1]
    actions = s.act(0, 2, 3)
    old = []
    for k, action in enumerate(actions):
        theta = s.theta if overlap and k == 0 else acted
        outputs, _ = s.network.run(theta, O[2 : 3 + k, 0], memory)
        if network is LSTM and k == 1 and overlap:
            outputs, _ = s.network.run(acted, O[2:4, 0], memory)
        old.append(reference.likelihood(outputs[-1], action)[0])
    end = s.value(O[2:5, 0], memory, acted)
    steps = s.steps(O[2:4, 0], actions, [3, 0.5], end, memory, acted, old)
    for push in (2, 3):
        s.check(push, [steps])
    same = s.steps(O[2:4, 0], actions, [3, 0.5], end, memory, acted)
    assert (np.abs(np.subtract(same.old, old)).max() > 0.02) == overlap


def test_update_begins_with_the_newest_parameters() -> None:
    """Another worker pushes during the rollout. The ratio contains its update, and clips its effect."""
    s = PpoScene(2)
    rewards = [[1.0, -2.0], [3.0, 0.5], [-1.0, 4.0]]
    s.reset(O[0, :2])
    s.step(rewards[0], O[1, :2])
    newer = s.theta + np.random.default_rng(8).normal(0, 0.3, s.theta.size).astype(np.float32)
    s.parameters_client.publish(newer)
    s.step(rewards[1], O[2, :2])
    s.step(rewards[2], O[3, :2])
    np.testing.assert_array_equal(s.made[0].base.parameters, newer)
    sequences = [s.steps(O[:3, i], s.act(i, 0, 1, 2), [r[i] for r in rewards], s.value(O[:4, i])) for i in range(2)]
    assert s.check(0, sequences)["policy/clipped"] > 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("network", [DISCRETE, LSTM], ids=["feed-forward", "lstm"])
def test_held_action_keeps_its_likelihood(network: Network, overlap: bool) -> None:
    """Environment 1 waits during an update. Its action was chosen by the parameters before it."""
    s = PpoScene(2, network, episode_len=1, overlap=overlap, out_of_step=True, learning_rate=0.3)
    s.reset(O[0, :2])
    s.step([9, VOID], O[1, :2], unwanted=[1])
    s.step([VOID, 3], O[2, :2], unwanted=[0])
    s.check(0, [s.steps(O[:1, 0], s.act(0, 0), [9], s.value(O[:2, 0]))])
    theta = s.made[1].base.parameters
    (action,) = s.act(1, 0)
    old = reference.likelihood(s.network.run(s.theta, [O[0, 1]])[0][0], action)[0]
    now = reference.likelihood(s.network.run(theta, [O[0, 1]])[0][0], action)[0]
    assert abs(now - old) > 0.02
    end = s.value([O[0, 1], O[2, 1]], theta=theta)
    s.check(1, [s.steps(O[:1, 1], [action], [3], end, theta=theta, old=[old])])
    assert [push.env_steps for push in s.made] == [1, 1]


@pytest.mark.parametrize("overlap", [False, True])
def test_likelihood_of_held_action_moves_to_row_0(overlap: bool) -> None:
    """Environment 1 has completed a step, and its second action is in progress at the update."""
    s = PpoScene(2, episode_len=2, overlap=overlap, out_of_step=True, learning_rate=0.3)
    s.reset(O[0, :2])
    s.step([9, -9], O[1, :2])
    s.step([9, VOID], O[2, :2], unwanted=[1])
    s.step([VOID, 3], O[3, :2], unwanted=[0])
    s.step([VOID, -2], O[4, :2], unwanted=[0])
    assert [push.env_steps for push in s.made] == [3, 2]
    theta = s.made[1].base.parameters
    first, second = s.act(1, 1, 3)
    old = [
        reference.likelihood(s.network.run(used, [x])[0][0], action)[0]
        for used, x, action in ((s.theta, O[1, 1], first), (theta, O[3, 1], second))
    ]
    inputs = [O[1, 1], O[3, 1]]
    steps = s.steps(inputs, [first, second], [3, -2], s.value([O[4, 1]], theta=theta), theta=theta, old=old)
    assert abs(reference.likelihood(s.network.run(theta, [O[1, 1]])[0][0], first)[0] - old[0]) > 0.02
    s.check(1, [steps])


def test_columns_of_unequal_length_are_covered_once() -> None:
    s = PpoScene(2, out_of_step=True, learning_rate=0.0, minibatches=2)
    s.reset(O[0, :2])
    s.step([1, VOID], O[1, :2], unwanted=[1])
    s.step([2, 3], O[2, :2])
    s.step([4, VOID], O[3, :2], unwanted=[1])
    sequences = [
        s.steps(O[:3, 0], s.act(0, 0, 1, 2), [1, 2, 4], s.value(O[:4, 0])),
        s.steps(O[:1, 1], s.act(1, 0), [3], s.value([O[0, 1], O[2, 1]])),
    ]
    assert [push.env_steps for push in s.made] == [4, 0]
    close((s.made[0].gradient + s.made[1].gradient) / 2, s.expected(0, sequences)[0])


def test_large_divergence_ends_the_epochs() -> None:
    every, some = (PpoScene(2, epochs=6, minibatches=3, target_kl=limit) for limit in (None, LARGE))
    play(every)
    play(some)
    kl = [value for name, value in every.parameters_client.scalars if name == "policy/kl"]
    first = next(push for push in range(18) if kl[push] > LARGE)
    assert 0 < first < 12
    # A next epoch would begin with another minibatch, which may diverge less.
    assert len(some.made) == first
    for made, expected in zip(some.made, every.made, strict=False):
        np.testing.assert_array_equal(made.gradient, expected.gradient)


def test_steps_are_counted_if_no_gradient_is_pushed() -> None:
    s = PpoScene(2, target_kl=1e-6)
    s.reset(O[0, :2])
    s.step([1, 2], O[1, :2])
    s.parameters_client.publish(s.theta + np.random.default_rng(8).normal(0, 0.3, s.theta.size).astype(np.float32))
    s.step([1, 2], O[2, :2])
    s.step([1, 2], O[3, :2])
    assert [(push.gradient, push.env_steps) for push in s.made] == [(None, 6)]
