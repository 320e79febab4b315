from __future__ import annotations

import numpy as np
import pytest

from relaax.algorithm_base.acting.exploration import (
    LinearAnnealing,
    PersistentNoise,
    drawn_epsilons,
    epsilon_greedy,
    ladder_of_epsilons,
)
from relaax.nn.distributions import Bernoulli, Categorical, Composite, Distribution, Gaussian, MultiCategorical

PAPER = ([0.1, 0.01, 0.5], [0.4, 0.3, 0.3])


@pytest.mark.parametrize(
    ("count", "value"), [(-1, 1.0), (0, 1.0), (1_000_000, 0.775), (2_000_000, 0.55), (4_000_000, 0.1), (10**9, 0.1)]
)
def test_linear_annealing_by_hand(count: float, value: float) -> None:
    assert LinearAnnealing(1.0, 0.1, 4_000_000)(count) == pytest.approx(value)


def test_annealing_over_zero_frames_returns_the_final_value() -> None:
    assert LinearAnnealing(1.0, 0.1, 0)(0) == pytest.approx(0.1)


def test_annealing_accepts_a_final_value_per_actor() -> None:
    annealing = LinearAnnealing(1.0, np.array([0.1, 0.5]), 100)
    assert annealing(50).tolist() == pytest.approx([0.55, 0.75])


def test_final_epsilons_have_the_probabilities_of_the_paper() -> None:
    drawn = drawn_epsilons(3, range(10_000), *PAPER)
    shares = [float(np.mean(drawn == value)) for value in PAPER[0]]
    assert shares == pytest.approx(PAPER[1], abs=0.02)  # the standard deviation is 0.005


def test_epsilon_depends_only_on_seed_and_actor() -> None:
    together = drawn_epsilons(3, [4, 5, 6, 7], *PAPER)
    assert drawn_epsilons(3, [6], *PAPER)[0] == together[2]
    assert drawn_epsilons(3, range(100), *PAPER).tolist() != drawn_epsilons(4, range(100), *PAPER).tolist()


def test_probabilities_are_relative_weights() -> None:
    assert set(drawn_epsilons(0, range(500), [0.2, 0.3], [0.0, 5.0])) == {0.3}


def test_epsilon_ladder_follows_the_formula_of_ape_x() -> None:
    # 0.4^(1 + 7 i / 3) of four actors.
    expected = [0.4, 0.4 ** (10 / 3), 0.4 ** (17 / 3), 0.4**8]
    assert ladder_of_epsilons([0, 1, 2, 3], 4).tolist() == pytest.approx(expected)


def test_single_actor_gets_the_first_epsilon_of_the_ladder() -> None:
    assert ladder_of_epsilons([0], 1).tolist() == [0.4]


def test_share_of_random_actions_equals_epsilon() -> None:
    values = np.tile(np.array([0.0, 2.0, 1.0], np.float32), (30_000, 1))
    epsilon = np.repeat([0.0, 0.6, 1.0], 10_000)
    actions = epsilon_greedy(values, epsilon, np.random.default_rng(1)).reshape(3, -1)
    assert actions.dtype == np.int64
    shares = np.array([np.bincount(row, minlength=3) / 10_000 for row in actions])
    assert shares[0].tolist() == [0, 1, 0]
    assert shares[1] == pytest.approx([0.2, 0.6, 0.2], abs=0.02)  # 0.4 + 0.6 / 3 for the best
    assert shares[2] == pytest.approx([1 / 3] * 3, abs=0.02)


@pytest.mark.parametrize(
    "policy",
    [
        Categorical(4),
        MultiCategorical([3, 2]),
        Bernoulli(3),
        Gaussian(2),
        Gaussian(2, spherical=True),
        Composite([Gaussian(2), Categorical(4), Bernoulli(3), MultiCategorical([3, 2])]),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_persistent_numbers_select_the_same_actions(policy: Distribution) -> None:
    outputs = {head: np.zeros((2000, width), np.float32) for head, width in policy.heads.items()}
    never = PersistentNoise(policy, 1e9, np.random.default_rng(1))
    noise = PersistentNoise(policy, 4, np.random.default_rng(1))
    first = policy.sample(outputs, np.random.default_rng(1))
    assert np.array_equal(never.sample(outputs), first)
    assert np.array_equal(never.sample(outputs), first)
    assert np.array_equal(noise.sample(outputs), first)
    same = (noise.sample(outputs) == first).reshape(2000, -1).all(axis=1)
    chance = (policy.sample(outputs, np.random.default_rng(2)) == first).reshape(2000, -1).all(axis=1).mean()
    assert same.mean() == pytest.approx(0.75 + 0.25 * chance, abs=0.04)  # the standard deviation is 0.01
