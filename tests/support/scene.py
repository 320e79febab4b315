"""Scripted episodes of an agent, with checks of the gradients that it pushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from relaax.algorithm_base import AgentBase, Leaves, Space, StepResult
from relaax.algorithm_base.testing import FakeParameters, make_agent
from relaax.hosting.loader import Algorithm
from support.reference_actor_critic import Network, Stretch, loss_gradient

GAMMA, BETA, WEIGHT = 0.9, 0.05, 0.25


class Script:
    """A short interface to an agent that records its actions. Observations are one array [N, ...]."""

    def __init__(self, agent: AgentBase, environments: int) -> None:
        self.agent = agent
        self.n = environments
        self.actions: list[Any] = []  # by step, then by environment: an action, or the leaves of one

    def reset(self, observations: Any) -> None:
        self.actions.clear()
        self._take(self.agent.reset([np.asarray(observations)]))

    def step(
        self,
        rewards: Sequence[float],
        observations: Any,
        terminated: Sequence[int] = (),
        truncated: Sequence[int] = (),
        first: Sequence[int] = (),
        final: Any = None,
        unwanted: Sequence[int] = (),
    ) -> None:
        """Step the agent. `terminated`, `truncated`, `first` and `unwanted` are indices of environments."""
        masks = [np.isin(np.arange(self.n), indices) for indices in (terminated, truncated, first)]
        idle = np.isin(np.arange(self.n), unwanted) if unwanted else None
        if not np.any(masks):
            masks = [masks[0]] * 3  # a worker also passes one array three times if no flag is set
        finals = None if final is None else [np.asarray(final)]
        self._take(
            self.agent.step(StepResult(np.array(rewards, np.float64), [np.asarray(observations)], *masks, finals, idle))
        )

    def _take(self, actions: Leaves) -> None:
        rows = list(zip(*actions, strict=True)) if len(actions) > 1 else actions[0].copy()
        self.actions.append(rows)
        self.agent.learn()


class Scene(Script):
    """A small actor-critic on observations [N, D], whose parameters fit the reference network.

    By default, it uses the paper's order: `overlap` is off. `weights`: of the entropies of an action's leaves.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        observation_space: Space,
        action_space: Space,
        environments: int,
        network: Network,
        *,
        learning_rate: float = 0.5,
        exploit: bool = False,
        weights: Sequence[float] = (),
        out_of_step: bool = False,
        **keys: Any,
    ) -> None:
        self.weights = weights
        section = {
            "path": algorithm.name,
            "rewards_gamma": GAMMA,
            "entropy_beta": BETA,
            "value_loss_weight": WEIGHT,
            "RMSProp": {"gradient_norm_clipping": None},
            "overlap": False,
            "normalize_rewards": None,
            "network": {
                "dense": [network.hidden],
                "lstm_size": network.cells or 1,
                "separate": len(network.trunks) > 1,
            },
            "lstm": bool(network.cells),
        }
        self.network = network
        self.theta = np.random.default_rng(7).normal(size=network.size).astype(np.float32)
        config = algorithm.configure(section | keys)
        statistics = algorithm.ParameterServer(config, observation_space, action_space).statistics()
        self.parameters_client = FakeParameters(self.theta, learning_rate=learning_rate, statistics=statistics)
        agent, _ = make_agent(
            algorithm,
            config,
            observation_space,
            action_space,
            environments=environments,
            parameters=self.parameters_client,
            exploit=exploit,
            out_of_step=out_of_step,
        )
        super().__init__(agent, environments)

    def act(self, environment: int, *times: int) -> list[Any]:
        """Return the actions of one environment at these times."""
        return [self.actions[t][environment] for t in times]

    def value(self, inputs: Sequence[Any], memory: Any = None, theta: np.ndarray | None = None) -> float:
        """Return the value of the last input."""
        return self.network.value(self.theta if theta is None else theta, inputs, memory)

    def expect_rollout_with_ends(self, observations: np.ndarray, final: np.ndarray) -> None:
        """Play a rollout of three steps in two environments whose episodes end inside it, and check its gradient.

        `observations`: [time, environment, D]. `final`: the final observations, [environment, D].
        """
        seen = observations
        self.reset(seen[0])
        self.step([1, -2], seen[1])
        # Environment 0 terminates, environment 1 is truncated.
        self.step([3, 0.5], seen[2], terminated=[0], truncated=[1], final=final)
        self.step([-1, 4], seen[3])
        ends = [r + GAMMA * self.value([seen[2][i], seen[3][i]]) for i, r in enumerate([-1, 4])]
        # The value of the final observation uses the LSTM state of its own episode.
        cut_off = 0.5 + GAMMA * self.value([seen[0][1], seen[1][1], final[1]])
        self.expect(
            0,
            [
                Stretch(seen[:2, 0], self.act(0, 0, 1), [1 + GAMMA * 3, 3]),
                Stretch(seen[2:3, 0], self.act(0, 2), [ends[0]]),
                Stretch(seen[:2, 1], self.act(1, 0, 1), [-2 + GAMMA * cut_off, cut_off]),
                Stretch(seen[2:3, 1], self.act(1, 2), [ends[1]]),
            ],
        )

    def expect(self, push: int, stretches: Sequence[Stretch], environments: int | None = None) -> None:
        """Check the gradient of a push: it must be the gradient of these stretches at the push's base parameters."""
        made = self.parameters_client.pushes[push]
        wanted = loss_gradient(
            self.network,
            made.base.parameters,
            stretches,
            environments=environments or self.n,
            value_weight=WEIGHT,
            beta=BETA,
            entropy_weights=self.weights,
        )
        assert made.gradient is not None
        assert np.abs(wanted).max() > 1e-2
        np.testing.assert_allclose(made.gradient, wanted, rtol=2e-3, atol=1e-4 * np.abs(wanted).max())
