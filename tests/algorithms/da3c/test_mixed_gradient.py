"""Pushed gradients of mixed actions, compared with independently computed gradients for given episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, load_algorithm
from support.reference_actor_critic import Network, Stretch, likelihood
from support.scene import GAMMA, Scene

DA3C = load_algorithm("da3c", Path())
VECTOR = Box(-9, 9, shape=(2,))
ACTIONS = Dict({"shoot": Discrete(2), "gear": Discrete(3), "aim": Box(shape=(2,))})  # leaves: aim, gear, shoot
HEADS = {"mean.0": 2, "variance.0": 2, "policy.1": 3, "policy.2": 2}
SPHERICAL = {"mean.0": 2, "variance.0": 1, "policy.1": 3, "policy.2": 2}
FEED_FORWARD = Network(features=2, hidden=3, cells=0, trunks=[HEADS | {"value": 1}])
SEPARATE = Network(features=2, hidden=3, cells=0, trunks=[HEADS, {"value": 1}])
LSTM = Network(features=2, hidden=3, cells=2, trunks=[HEADS | {"value": 1}])
WEIGHTS = {"entropy_weights": {"aim": 0.5, "shoot": 3.0}}
O = np.random.default_rng(1).normal(size=(9, 2, 2)).astype(np.float32)  # noqa: E741 - observations [time, environment]
F = np.random.default_rng(2).normal(size=(2, 2)).astype(np.float32)  # final observations
SEEDS = {(0, False): 8, (0, True): 11, (2, False): 5, (2, True): 2}
"""Seeds by (LSTM cells, whether the update makes the previously drawn action less likely)."""


def scene(environments: int, network: Network, weights: Any = (1.0, 1.0, 1.0), **keys: Any) -> Scene:
    return Scene(DA3C, VECTOR, ACTIONS, environments, network, weights=weights, **keys)


@pytest.mark.parametrize(
    ("network", "keys", "weights"),
    [
        pytest.param(FEED_FORWARD, {}, (1.0, 1.0, 1.0), id="feed-forward"),
        pytest.param(FEED_FORWARD, WEIGHTS, (0.5, 1.0, 3.0), id="weights"),
        pytest.param(SEPARATE, WEIGHTS, (0.5, 1.0, 3.0), id="separate"),
        pytest.param(LSTM, WEIGHTS, (0.5, 1.0, 3.0), id="lstm"),
        pytest.param(
            Network(features=2, hidden=3, cells=2, trunks=[SPHERICAL | {"value": 1}]),
            WEIGHTS | {"spherical": True},
            (0.5, 1.0, 3.0),
            id="spherical",
        ),
    ],
)
def test_gradient_of_the_whole_loss(network: Network, keys: dict[str, Any], weights: tuple[float, ...]) -> None:
    s = scene(2, network, weights, episode_len=3, **keys)
    s.expect_rollout_with_ends(O, F)


@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
@pytest.mark.parametrize("unlikely", [False, True])
def test_importance_weight_is_that_of_all_parts(network: Network, unlikely: bool) -> None:
    s = scene(1, network, overlap=True, episode_len=2, learning_rate=0.1, seed=SEEDS[network.cells, unlikely])
    s.reset(O[0][:1])
    for t, reward in enumerate([1, -2, 3, 0.5, 4]):
        s.step([reward], O[t + 1][:1])
    updated = s.parameters_client.pushes[1].base.parameters
    # The action for O[2] was drawn before the update. Everything else uses the parameters after it.
    memory = s.network.run(s.theta, [O[0][0], O[1][0]])[1]
    (action,) = s.act(0, 2)
    ratio = np.exp(
        likelihood(s.network.run(updated, [O[2][0]], memory)[0][0], action, s.weights)[0]
        - likelihood(s.network.run(s.theta, [O[2][0]], memory)[0][0], action, s.weights)[0]
    )
    assert ratio < 0.95 if unlikely else ratio > 1.04
    target = 0.5 + GAMMA * s.value([O[2][0], O[3][0], O[4][0]], memory, updated)
    targets = [3 + GAMMA * target, target]
    values = [s.value(O[2 : 3 + t, 0], memory, updated) for t in range(2)]
    advantages = [min(1.0, ratio) * (targets[0] - values[0]), targets[1] - values[1]]
    s.expect(1, [Stretch(O[2:4, 0], s.act(0, 2, 3), targets, memory, advantages)])


@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
def test_whole_episodes_of_different_lengths(network: Network) -> None:
    s = scene(2, network, (0.5, 1.0, 3.0), whole_episodes=True, learning_rate=0.0, **WEIGHTS)
    s.reset(O[0])
    s.step([1, 10], O[1])
    s.step([2, 20], O[2], terminated=[1], final=O[2])
    s.step([3, 30], O[3])
    s.step([4, 40], O[4], terminated=[0], truncated=[1], final=F)
    base = s.parameters_client.pushes[1].base.parameters
    cut_off = 40 + GAMMA * s.value([*O[2:4, 1], F[1]], theta=base)
    r2 = 3 + GAMMA * 4
    s.expect(0, [Stretch(O[:2, 1], s.act(1, 0, 1), [28.0, 20.0])], environments=1)
    r1 = 2 + GAMMA * r2
    together = [
        Stretch(O[:4, 0], s.act(0, 0, 1, 2, 3), [1 + GAMMA * r1, r1, r2, 4]),
        Stretch(O[2:4, 1], s.act(1, 2, 3), [30 + GAMMA * cut_off, cut_off]),
    ]
    s.expect(1, together, environments=2)
