"""An agent in an episode that a test has written out, and what it pushed."""

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
    """What an agent is told, written as short as can be, and what it did. Observations are one array [N, ...]."""

    def __init__(self, agent: AgentBase, environments: int) -> None:
        self.agent = agent
        self.n = environments
        self.actions: list[np.ndarray] = []

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
    ) -> None:
        """`terminated`, `truncated` and `first` are indices of environments."""
        masks = [np.isin(np.arange(self.n), indices) for indices in (terminated, truncated, first)]
        if not np.any(masks):
            masks = [masks[0]] * 3  # as a worker says that nothing is marked
        finals = None if final is None else [np.asarray(final)]
        self._take(
            self.agent.step(StepResult(np.array(rewards, np.float64), [np.asarray(observations)], *masks, finals))
        )

    def _take(self, actions: Leaves) -> None:
        self.actions.append(actions[0].copy())
        self.agent.learn()


class Scene(Script):
    """A small actor-critic on observations [N, D], with parameters that the reference network knows as well.

    In the paper's order, where nothing else is said.
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
        **keys: Any,
    ) -> None:
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
        self.bridge = FakeParameters(self.theta, learning_rate=learning_rate, statistics=statistics)
        agent, _ = make_agent(
            algorithm,
            config,
            observation_space,
            action_space,
            environments=environments,
            parameters=self.bridge,
            exploit=exploit,
        )
        super().__init__(agent, environments)

    def act(self, environment: int, *times: int) -> list[Any]:
        """What one environment's actions were."""
        return [self.actions[t][environment] for t in times]

    def value(self, inputs: Sequence[Any], memory: Any = None, theta: np.ndarray | None = None) -> float:
        """Of the last of the inputs."""
        return self.network.value(self.theta if theta is None else theta, inputs, memory)

    def expect(self, push: int, stretches: Sequence[Stretch], environments: int | None = None) -> None:
        """The gradient of this push is that of these stretches, on the parameters that it was computed on."""
        made = self.bridge.pushes[push]
        wanted = loss_gradient(
            self.network,
            made.base.parameters,
            stretches,
            environments=environments or self.n,
            value_weight=WEIGHT,
            beta=BETA,
        )
        assert made.gradient is not None
        assert np.abs(wanted).max() > 1e-2
        np.testing.assert_allclose(made.gradient, wanted, rtol=2e-3, atol=1e-4 * np.abs(wanted).max())
