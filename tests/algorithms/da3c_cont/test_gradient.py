"""Pushed gradients, compared with independently computed gradients for given episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, load_algorithm
from relaax.parameters.moments import Moments
from support.reference_actor_critic import Network, Stretch
from support.scene import GAMMA, Scene

DA3C_CONT = load_algorithm("da3c_cont", Path())
VECTOR, FORCES = Box(-9, 9, shape=(2,)), Box(shape=(2,))
DIAGONAL = {"mean": 2, "variance": 2}
FEED_FORWARD = Network(features=2, hidden=3, cells=0, trunks=[DIAGONAL | {"value": 1}])
LSTM = Network(features=2, hidden=3, cells=2, trunks=[DIAGONAL | {"value": 1}])
SPHERICAL = Network(features=2, hidden=3, cells=2, trunks=[{"mean": 2, "variance": 1, "value": 1}])
SEPARATE = Network(features=2, hidden=3, cells=2, trunks=[DIAGONAL, {"value": 1}])
SEPARATE_FEED_FORWARD = Network(features=2, hidden=3, cells=0, trunks=[DIAGONAL, {"value": 1}])
O = np.random.default_rng(1).normal(3, 2, size=(9, 2, 2)).astype(np.float32)  # noqa: E741 - [time, environment]
F = np.random.default_rng(2).normal(3, 2, size=(2, 2)).astype(np.float32)  # final observations


def scene(environments: int, network: Network, **keys: Any) -> Scene:
    return Scene(DA3C_CONT, VECTOR, FORCES, environments, network, **{"normalize_observations": False} | keys)


def normal(samples: Sequence[Any], x: Any) -> np.ndarray:
    """Return x normalised by the mean and deviation of all samples, clipped to -10..10."""
    samples, x = np.array(samples, np.float64).reshape(-1, 2), np.asarray(x, np.float64)
    if not len(samples):
        return x
    std = samples.std(axis=0)
    return np.clip((x - samples.mean(axis=0)) / np.where(std > 0, std, 1.0), -10, 10)


@pytest.mark.parametrize(
    ("network", "keys"),
    [
        pytest.param(FEED_FORWARD, {}, id="feed-forward"),
        pytest.param(SEPARATE_FEED_FORWARD, {}, id="separate"),
        pytest.param(LSTM, {}, id="lstm"),
        pytest.param(SPHERICAL, {"spherical": True}, id="spherical"),
        pytest.param(SEPARATE, {}, id="separate-lstm"),
    ],
)
def test_gradient_of_the_whole_loss(network: Network, keys: dict[str, Any]) -> None:
    s = scene(2, network, episode_len=3, **keys)
    s.expect_rollout_with_ends(O, F)


@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
def test_observations_use_statistics_of_their_acting_step(network: Network) -> None:
    s = scene(2, network, episode_len=3, normalize_observations=True)
    s.reset(O[0])
    s.step([1, -2], O[1])
    s.step([3, 0.5], O[2], terminated=[0], truncated=[1], final=F)
    # Statistics of other workers have no effect before the next pull.
    s.parameters_client.publish(s.theta, {"observation": Moments.of(np.full((50, 2), 1000.0))})
    s.step([-1, 4], O[3])
    n0, n1, n2, n3 = normal([], O[0]), normal(O[:1], O[1]), normal(O[:2], O[2]), normal(O[:3], O[3])
    final = normal(O[:2], F)  # with the statistics of the observation in the same step
    ends = [r + GAMMA * s.value([n2[i], n3[i]]) for i, r in enumerate([-1, 4])]
    cut_off = 0.5 + GAMMA * s.value([n0[1], n1[1], final[1]])
    s.expect(
        0,
        [
            Stretch([n0[0], n1[0]], s.act(0, 0, 1), [1 + GAMMA * 3, 3]),
            Stretch([n2[0]], s.act(0, 2), [ends[0]]),
            Stretch([n0[1], n1[1]], s.act(1, 0, 1), [-2 + GAMMA * cut_off, cut_off]),
            Stretch([n2[1]], s.act(1, 2), [ends[1]]),
        ],
    )
    sent = s.parameters_client.pushes[0].statistics["observation"]
    whole = Moments.of(O[:3].reshape(-1, 2))
    assert sent.count == 6
    np.testing.assert_allclose([sent.mean, sent.m2], [whole.mean, whole.m2], rtol=1e-12)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("anything", [0.0, np.inf, np.nan, 1e300])
def test_unused_final_observations_may_be_anything(anything: float, normalized: bool) -> None:
    space = Box(-9, 9, shape=(2,), dtype="float64")
    s = Scene(DA3C_CONT, space, FORCES, 3, LSTM, episode_len=2, normalize_observations=normalized)
    three = np.concatenate([O, O[:, :1] + 1], axis=1).astype(np.float64)
    s.reset(three[0])
    final = np.array([[anything] * 2, F[1], [-anything] * 2])
    s.step([1, -2, 3], three[1], terminated=[2], truncated=[1], final=final)
    s.step([3, 0.5, 4], three[2])
    n0, n1, n2 = normal([], three[0]), three[1], three[2]
    end = F[1]
    if normalized:
        first = three[0]
        n1, n2, end = normal(first, three[1]), normal(three[:2], three[2]), normal(first, F[1])
    go_on = 3 + GAMMA * s.value([n0[0], n1[0], n2[0]])
    s.expect(
        0,
        [
            Stretch([n0[0], n1[0]], s.act(0, 0, 1), [1 + GAMMA * go_on, go_on]),
            Stretch([n0[1]], s.act(1, 0), [-2 + GAMMA * s.value([n0[1], end])]),
            Stretch([n1[1]], s.act(1, 1), [0.5 + GAMMA * s.value([n1[1], n2[1]])]),
            Stretch([n0[2]], s.act(2, 0), [3.0]),
            Stretch([n1[2]], s.act(2, 1), [4 + GAMMA * s.value([n1[2], n2[2]])]),
        ],
    )


def test_pulled_statistics_are_those_of_all_workers() -> None:
    s = scene(1, FEED_FORWARD, episode_len=2, normalize_observations=True, learning_rate=0.0)
    others = np.random.default_rng(3).normal(-5, 3, size=(40, 2))
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.parameters_client.publish(s.theta, {"observation": Moments.of(others)})
    s.step([2], O[2][:1])  # normalised before the pull
    s.step([3], O[3][:1])
    s.step([4], O[4][:1])
    mine = list(O[:, 0])
    n2, n3 = normal(mine[:2], mine[2]), normal([*others, *mine[:3]], mine[3])
    n4 = normal([*others, *mine[:4]], mine[4])
    end = 4 + GAMMA * s.value([n4])
    s.expect(1, [Stretch([n2, n3], s.act(0, 2, 3), [3 + GAMMA * end, end])])
    assert s.parameters_client.statistics["observation"].count == 44


def test_own_statistics_are_used_between_pulls() -> None:
    s = scene(1, FEED_FORWARD, episode_len=1, normalize_observations=True, learning_rate=0.0, sync_interval=3)
    s.reset(O[0][:1])
    for t in range(3):
        s.step([1], O[t + 1][:1])
    mine = list(O[:, 0])
    n2, n3 = normal(mine[:2], mine[2]), normal(mine[:3], mine[3])
    s.expect(2, [Stretch([n2], s.act(0, 2), [1 + GAMMA * s.value([n3])])])
    assert [push.statistics["observation"].count for push in s.parameters_client.pushes] == [1, 1, 1]


def test_void_transitions_are_ignored() -> None:
    s = scene(2, LSTM, episode_len=4, normalize_observations=True, normalize_rewards="standardize")
    s.reset(O[0])
    s.step([1, -2], O[1])
    s.step([3, 1], O[2], truncated=[0], final=O[2])  # NEXT_STEP: the observation is the final one
    s.step([1e30, 4], O[3], first=[0])
    s.step([2, 2], O[4])
    observations = [*O[0], *O[1], O[2][1], *O[3]]
    rewards = [1, -2, 3, 1, 4, 2, 2]
    push = s.parameters_client.pushes[0]
    for name, samples in (("observation", np.array(observations)), ("reward", np.array(rewards)[:, None])):
        whole = Moments.of(samples)
        assert push.statistics[name].count == 7
        np.testing.assert_allclose(push.statistics[name].mean, whole.mean, rtol=1e-12)
        np.testing.assert_allclose(push.statistics[name].m2, whole.m2, rtol=1e-12)
    assert push.env_steps == 7

    def learned(upto: int, reward: float) -> float:
        return (reward - np.mean(rewards[:upto])) / np.std(rewards[:upto])

    def seen(upto: int, t: int, i: int) -> np.ndarray:
        return normal(observations[:upto], O[t][i])

    mine = [seen(0, 0, 0), seen(2, 1, 0)]
    end = learned(4, 3) + GAMMA * s.value([*mine, seen(4, 2, 0)])
    late = learned(7, 2) + GAMMA * s.value([seen(5, 3, 0), seen(7, 4, 0)])
    other = [seen(0, 0, 1), seen(2, 1, 1), seen(4, 2, 1), seen(5, 3, 1)]
    returns = [s.value([*other, seen(7, 4, 1)])]
    for upto, reward in ((7, 2), (5, 4), (4, 1), (2, -2)):
        returns.insert(0, learned(upto, reward) + GAMMA * returns[0])
    s.expect(
        0,
        [
            Stretch(mine, s.act(0, 0, 1), [learned(2, 1) + GAMMA * end, end]),
            Stretch([seen(5, 3, 0)], s.act(0, 3), [late]),
            Stretch(other, s.act(1, 0, 1, 2, 3), returns[:4]),
        ],
    )


def test_rewards_are_scaled_by_the_discounted_return() -> None:
    s = scene(1, FEED_FORWARD, episode_len=4, normalize_rewards="scale")
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([3], O[2][:1])
    s.step([-2], O[3][:1], terminated=[0], final=F[:1])
    s.step([5], O[4][:1])
    sums = [1, 3 + GAMMA, -2 + GAMMA * (3 + GAMMA), 5]  # the sum restarts after the end of an episode
    unit = [1.0, np.std(sums[:2]), np.std(sums[:3]), np.std(sums)]
    r = [reward / u for reward, u in zip([1, 3, -2, 5], unit, strict=True)]
    last = r[3] + GAMMA * s.value([O[4][0]])
    returns = [r[0] + GAMMA * (r[1] + GAMMA * r[2]), r[1] + GAMMA * r[2], r[2], last]
    s.expect(0, [Stretch(O[:4, 0], s.act(0, 0, 1, 2, 3), returns)])
    np.testing.assert_allclose(s.parameters_client.pushes[0].statistics["return"].mean, np.mean(sums))


def test_reset_clears_the_discounted_returns() -> None:
    s = scene(1, FEED_FORWARD, episode_len=1, normalize_rewards="scale")
    s.reset(O[0][:1])
    s.step([100], O[1][:1])
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    assert s.parameters_client.pushes[1].statistics["return"].mean.tolist() == [1.0]


def test_normalised_rewards_are_clipped() -> None:
    s = scene(1, FEED_FORWARD, episode_len=2, normalize_rewards="standardize", reward_clipping=0.5)
    s.reset(O[0][:1])
    s.step([7], O[1][:1])  # the only reward equals the mean
    s.step([9], O[2][:1])  # (9 - 8) / 1
    end = 0.5 + GAMMA * s.value([O[2][0]])
    s.expect(0, [Stretch(O[:2, 0], s.act(0, 0, 1), [GAMMA * end, end])])
    assert s.parameters_client.pushes[0].statistics["reward"].mean.tolist() == [8.0]


def test_likelihood_is_of_the_action_before_clipping() -> None:
    """Compare an unbounded space with a narrow one whose middle is not 0, for the same random numbers."""
    free = scene(2, LSTM, episode_len=2)
    narrow = Scene(DA3C_CONT, VECTOR, Box([4, -0.5], [6, 0.5]), 2, LSTM, normalize_observations=False, episode_len=2)
    for s in (free, narrow):
        s.reset(O[0])
        s.step([1, -2], O[1])
        s.step([3, 0.5], O[2])
    for u, given in zip(free.actions[:2], narrow.actions[:2], strict=True):
        np.testing.assert_allclose(given, np.clip([5, 0] + np.array([1, 0.5]) * u, [4, -0.5], [6, 0.5]), rtol=1e-6)
    cut = [np.isin(given, [4, 6, -0.5, 0.5]).mean() for given in narrow.actions]
    assert 0 < np.mean(cut) < 1
    np.testing.assert_allclose(
        narrow.parameters_client.pushes[0].gradient, free.parameters_client.pushes[0].gradient, rtol=1e-6
    )


def test_exploit_uses_statistics_but_sends_none() -> None:
    s = scene(1, FEED_FORWARD, normalize_observations=True, normalize_rewards="scale", exploit=True)
    samples = np.random.default_rng(3).normal(2, 4, size=(40, 2))
    s.parameters_client.publish(s.theta, {"observation": Moments.of(samples)})
    s.agent._use(s.parameters_client.pull())
    s.reset(O[0][:1])
    s.step([1], O[1][:1])
    s.step([1], O[2][:1], truncated=[0], final=F[:1])
    for t in range(3):
        outputs = s.network.run(s.theta, [normal(samples, O[t][0])])[0][0]
        np.testing.assert_allclose(s.actions[t][0], outputs["mean"], rtol=1e-4, atol=1e-5)
    assert s.parameters_client.statistics["observation"].count == 40
    assert s.parameters_client.pushes == []
