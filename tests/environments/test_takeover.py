"""The scripted experts and adversaries of the benchmark of takeovers."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from support.takeover import CartPoleExpert, PendulumExpert, Takeover


@pytest.mark.parametrize("seed", range(5))
def test_share_of_steps_is_taken_in_one_stretch_a_period(seed: int) -> None:
    env = CartPoleExpert(gymnasium.make("CartPole-v1"), steps=1_250, length=125)
    env.reset(seed=seed)
    taken = []
    for step in range(1_300):
        _, _, terminated, truncated, infos = env.step(step % 2)
        taken.append(infos["taken_action"] is not None)
        if terminated or truncated:
            env.reset()
    assert [sum(taken[:625]), sum(taken[625:1_250]), sum(taken[1_250:])] == [125, 125, 0]
    for period in (taken[:625], taken[625:1_250]):
        assert all(period[(first := period.index(True)) : first + 125])


@pytest.mark.parametrize(
    ("name", "wrapper", "good", "bad"),
    [("CartPole-v1", CartPoleExpert, 500, 15), ("Pendulum-v1", PendulumExpert, -300, -1_000)],
)
def test_expert_is_good_and_adversary_is_bad(name: str, wrapper: type[Takeover], good: float, bad: float) -> None:
    for wrong in (False, True):
        env = wrapper(gymnasium.make(name), share=1.0, wrong=wrong)
        returns = []
        for seed in range(10):
            env.reset(seed=seed)
            total, ended = 0.0, False
            while not ended:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                total, ended = total + float(reward), terminated or truncated
            returns.append(total)
        assert np.mean(returns) <= bad if wrong else np.mean(returns) >= good, (wrong, returns)
