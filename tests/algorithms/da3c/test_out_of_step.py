"""da3c and da3c_cont with environments out of step, compared with the definition of the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, load_algorithm
from support.lives import Decision, Lives
from support.reference_actor_critic import Network, Stretch, likelihood
from support.scene import GAMMA, Scene

DA3C, DA3C_CONT = (load_algorithm(name, Path()) for name in ("da3c", "da3c_cont"))
VECTOR = Box(-9, 9, shape=(2,))
FEED_FORWARD = Network(features=2, hidden=3, cells=0, trunks=[{"policy": 2, "value": 1}])
LSTM = Network(features=2, hidden=3, cells=2, trunks=[{"policy": 2, "value": 1}])
REAL_LSTM = Network(features=2, hidden=3, cells=2, trunks=[{"mean": 1, "variance": 1, "value": 1}])
O = np.random.default_rng(1).normal(size=(9, 2, 2)).astype(np.float32)  # noqa: E741 - observations [time, environment]
VOID = 1e9
SEEDS = {0: 0, 2: 7}
"""Seeds by LSTM cells, with which two updates make the action of environment 1 less likely."""


def scene(environments: int = 2, network: Network = FEED_FORWARD, **keys: Any) -> Scene:
    return Scene(DA3C, VECTOR, Discrete(2), environments, network, out_of_step=True, **keys)


class Reference:
    """The expected pushes of an agent with constant parameters, computed from the decisions of each environment."""

    def __init__(self, scene: Scene, lives: Lives) -> None:
        self._scene, self._lives = scene, lives
        self._begin = [0] * lives.n  # number of pushed decisions

    def expect(self, push: int, environments: list[int]) -> None:
        """Check a push of all decisions of these environments since the last one."""
        stretches = []
        for i in environments:
            stretches += self._stretches(self._lives.decisions[i], self._begin[i])
            self._begin[i] = len(self._lives.decisions[i])
        self._scene.expect(push, stretches, environments=len(environments))

    def count(self, environment: int) -> int:
        """Return the number of decisions since the last push."""
        return len(self._lives.decisions[environment]) - self._begin[environment]

    def _stretches(self, decisions: list[Decision], begin: int) -> list[Stretch]:
        network, theta = self._scene.network, self._scene.theta
        stretches: list[Stretch] = []
        target = None
        for t in range(len(decisions) - 1, begin - 1, -1):
            decision, seen = decisions[t], self._episode(decisions, t)
            if target is None and not decision.terminated:  # a final observation, or the state after the last step
                target = network.value(theta, [*seen, decision.following[0][0]])
            target = decision.reward + GAMMA * (target or 0.0)
            if not stretches or decision.ended:
                stretches.append(Stretch([], [], []))
            stretch = stretches[-1]
            stretch.inputs = [seen[-1], *stretch.inputs]
            stretch.actions = [decision.action, *stretch.actions]
            stretch.targets = [target, *stretch.targets]
            stretch.memory = network.run(theta, seen[:-1])[1]
            if decision.starts:
                target = None
        return stretches

    def _episode(self, decisions: list[Decision], t: int) -> list[np.ndarray]:
        """Return the observations of the episode up to decision t."""
        first = next(k for k in range(t, -1, -1) if decisions[k].starts)
        return [decision.observation[0][0] for decision in decisions[first : t + 1]]


def play_with_reference(scene: Scene, lives: Lives, length: int, whole_episodes: bool, pushes: int) -> None:
    reference, made = Reference(scene, lives), scene.parameters_client.pushes
    actions = scene.agent.reset(lives.reset())
    scene.agent.learn()
    while len(made) < pushes:
        before = [len(decisions) for decisions in lives.decisions]
        actions = scene.agent.step(lives.step(actions))
        scene.agent.learn()
        everyone = [i for i in range(lives.n) if reference.count(i)]
        due = [i for i in everyone if reference.count(i) >= length]
        if whole_episodes:
            new = [i for i in everyone if len(lives.decisions[i]) > before[i]]
            due = everyone = sorted({*due, *(i for i in new if lives.decisions[i][-1].ended)})
        if due:
            reference.expect(len(made) - 1, everyone)
        assert sum(push.env_steps for push in made) <= sum(map(len, lives.decisions))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
def test_gradients_equal_those_of_each_environments_decisions(network: Network, overlap: bool) -> None:
    lives = Lives(VECTOR, [1, 2, 3], idle=0.5)
    made = scene(3, network, overlap=overlap, episode_len=3, learning_rate=0.0)
    play_with_reference(made, lives, 3, False, 25)


@pytest.mark.parametrize("overlap", [False, True])
def test_whole_episodes_out_of_step(overlap: bool) -> None:
    lives = Lives(VECTOR, [1, 2, 3], idle=0.5)
    keys = {"whole_episodes": True, "longest_episode": 4, "normalize_observations": False, "learning_rate": 0.0}
    made = Scene(DA3C_CONT, VECTOR, Box(shape=(1,)), 3, REAL_LSTM, overlap=overlap, out_of_step=True, **keys)
    play_with_reference(made, lives, 4, True, 25)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
def test_two_players_take_turns(network: Network, overlap: bool) -> None:
    """The reward of the opponent's move comes with the next own step, and held rows have no effect."""
    s = scene(network=network, overlap=overlap, episode_len=2, learning_rate=0.0)
    s.reset(O[0])  # player 1 is away
    s.step([VOID, VOID], O[1], first=[1], unwanted=[0])
    s.step([1, VOID], O[2], unwanted=[1])
    s.step([VOID, -2], O[3], unwanted=[0])
    s.step([3, -4], O[4], terminated=[0, 1], unwanted=[0, 1], final=O[4])
    first = [Stretch([O[0, 0], O[2, 0]], [s.actions[0][0], s.actions[2][0]], [1 + GAMMA * 3, 3])]
    first += [Stretch([O[1, 1], O[3, 1]], [s.actions[1][1], s.actions[3][1]], [-2 + GAMMA * -4, -4])]
    s.expect(0, first)
    s.step([VOID, VOID], O[5], first=[1], unwanted=[0])
    s.step([VOID, VOID], O[6], first=[0], unwanted=[1])
    s.step([VOID, 5], O[7], truncated=[1], unwanted=[0, 1], final=O[8])
    s.step([6, VOID], O[7], unwanted=[1])
    s.step([7, VOID], O[8], unwanted=[1])
    six = 6 + GAMMA * (7 + GAMMA * s.value([O[6, 0], O[7, 0], O[8, 0]]))
    second = [Stretch([O[6, 0], O[7, 0]], [s.actions[6][0], s.actions[8][0]], [six, (six - 6) / GAMMA])]
    second += [Stretch([O[5, 1]], [s.actions[5][1]], [5 + GAMMA * s.value([O[5, 1], O[8, 1]])])]
    s.expect(1, second)
    assert [push.env_steps for push in s.parameters_client.pushes] == [4, 3]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("network", [FEED_FORWARD, LSTM], ids=["feed-forward", "lstm"])
def test_action_in_progress_at_an_update_is_importance_weighted(network: Network, overlap: bool) -> None:
    """Environment 1 waits during two updates. Its action was chosen by the parameters before both."""
    s = scene(network=network, overlap=overlap, episode_len=1, learning_rate=0.5, seed=SEEDS[network.cells])
    s.reset(O[0])
    s.step([1, VOID], O[1], unwanted=[1])
    s.step([2, VOID], O[2], unwanted=[1])
    s.step([VOID, 3], O[3], unwanted=[0])
    theta = s.parameters_client.pushes[2].base.parameters
    assert s.parameters_client.pushes[2].base.version == 2
    action = s.actions[0][1]
    then, now = (likelihood(s.network.run(used, [O[0, 1]])[0][0], action)[0] for used in (s.theta, theta))
    weight = min(1.0, np.exp(now - then))
    assert 0.05 < weight < 0.95
    target = 3 + GAMMA * s.value([O[0, 1], O[3, 1]], theta=theta)
    value = s.value([O[0, 1]], theta=theta)
    stretch = Stretch([O[0, 1]], [action], [target], advantages=[weight * (target - value)])
    s.expect(2, [stretch], environments=1)
