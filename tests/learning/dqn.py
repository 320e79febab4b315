"""Deep Q-learning (Mnih et al. 2015) with double estimates (van Hasselt et al. 2016), as a user would write it.

One file that uses only `relaax.algorithm_base`, `relaax.nn` and `relaax.optim`, with a replay memory in the worker and
a target network.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Discrete, Leaves, ParameterServerBase, StepResult
from relaax.algorithm_base.network import NetworkConfig, network_for, network_refusal
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.nn.engine import make_engine
from relaax.nn.initialization import orthogonal_parameters
from relaax.optim.clipping import clip_by_norm


class Config(ConfigBase):
    rewards_gamma: float = Field(0.99, ge=0, le=1, description="Discount of the reward one step later.")
    replay_size: int = Field(50_000, ge=1, description="Number of newest transitions that are kept.")
    replay_start: int = Field(1_000, ge=1, description="Transitions before the first update.")
    batch_size: int = Field(64, ge=1, description="Transitions per update.")
    target_interval: int = Field(250, ge=1, description="Updates between two refreshes of the target network.")
    final_epsilon: float = Field(0.01, ge=0, le=1, description="Final share of random actions.")
    exploration_steps: int = Field(10_000, ge=1, description="Global steps over which epsilon falls from 1.")
    network: NetworkConfig = Field(NetworkConfig(dense=[128, 128], activation="relu"), description="The network.")


def q_network(config: Config, observation_space: Any, action_space: Any) -> Any:
    return network_for(config.network, observation_space, {"q": action_space.n}, history_len=1)


class ParameterServer(ParameterServerBase):
    def initial_parameters(self, seed: int) -> Any:
        return orthogonal_parameters(
            q_network(self.config, self.observation_space, self.action_space), seed, {"q": 1.0}
        )


class Replay:
    """The newest `size` transitions, in arrays."""

    def __init__(self, size: int, inputs: tuple[int, ...]) -> None:
        self.before, self.after = np.zeros((2, size, *inputs), np.float32)
        self.actions = np.zeros(size, np.int64)
        self.rewards, self.discounts = np.zeros((2, size), np.float32)
        self.added = 0

    def add(self, *columns: Any) -> None:
        at = (self.added + np.arange(len(columns[1]))) % len(self.actions)
        for array, column in zip(
            (self.before, self.actions, self.rewards, self.discounts, self.after), columns, strict=True
        ):
            array[at] = column
        self.added += len(at)

    def sample(self, rng: np.random.Generator, count: int) -> tuple[Any, ...]:
        at = rng.integers(0, min(self.added, len(self.actions)), count)
        return self.before[at], self.actions[at], self.rewards[at], self.discounts[at], self.after[at]


class Agent(AgentBase):
    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        spec = q_network(config, context.observation_space, context.action_space)
        self._online, self._target = (make_engine(spec, np.float32, (1, None)) for _ in range(2))
        self._encoder = ObservationEncoder(context.observation_space, context.environments, history=1)
        self._replay = Replay(config.replay_size, spec.inputs)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._env_steps = self._updates = self._learned = self._global_step = 0
        self._use(context.parameters.pull())

    @classmethod
    def refusal(cls, config: Config, observation_space: Any, action_space: Any) -> str | None:
        if not isinstance(action_space, Discrete):
            return f"dqn cannot handle the action space {action_space}; it handles Discrete"
        return network_refusal(config.network, observation_space, {"q": action_space.n}, history_len=1)

    def reset(self, observations: Leaves) -> Leaves:
        return self._act(self._encoder.reset(observations))

    def step(self, step: StepResult) -> Leaves:
        after = self._encoder.push(step.observations, step.restart)
        if not self.context.exploit:
            followed = after if step.final_observations is None else self._encoder.peek(step.final_observations)
            followed = np.where(step.ended[:, None], followed, after)
            discounts = self.config.rewards_gamma * ~step.terminated  # a truncated episode still bootstraps
            valid = ~step.first
            columns = (self._inputs, self._actions, step.rewards, discounts, followed)
            self._replay.add(*(column[valid] for column in columns))
            self._env_steps += step.env_steps
        return self._act(after)

    def learn(self) -> None:
        if self.context.exploit or self._replay.added < self.config.replay_start:
            return
        if self._replay.added == self._learned:
            return
        self._learned = self._replay.added
        gradient = self._gradient(*self._replay.sample(self._rng, self.config.batch_size))
        clip_by_norm(gradient, self.config.gradient_norm_clipping)
        pushed = self.context.parameters.push(gradient, self._env_steps)
        self._env_steps = 0
        self._updates += 1
        if pushed.pulled is not None:
            self._use(pushed.pulled)

    def _use(self, pulled: Any) -> None:
        self._online.set_parameters(pulled.parameters)
        self._global_step = pulled.global_step
        if self._updates % self.config.target_interval == 0:
            self._target.set_parameters(pulled.parameters)

    def _q(self, engine: Any, inputs: Any) -> Any:
        return engine.act(inputs, np.zeros((len(inputs), 0), np.float32))[0]["q"]

    def _act(self, inputs: Any) -> Leaves:
        actions = self._q(self._online, inputs).argmax(axis=1)
        if not self.context.exploit:
            done = min(1.0, self._global_step / self.config.exploration_steps)
            random = self._rng.random(len(actions)) < 1 + done * (self.config.final_epsilon - 1)
            actions = np.where(random, self._rng.integers(0, self.context.action_space.n, len(actions)), actions)
        self._inputs, self._actions = np.array(inputs), actions
        return [actions + self.context.action_space.start]

    def _gradient(self, before: Any, actions: Any, rewards: Any, discounts: Any, after: Any) -> Any:
        """Return the gradient of the mean of Huber(Q(s, a) - y), y = r + discount * Q_target(s', argmax Q(s', .))."""
        rows = np.arange(len(actions))
        best = self._q(self._online, after).argmax(axis=1)
        targets = rewards + discounts * self._q(self._target, after)[rows, best]

        def loss(outputs: Any, part: slice) -> Any:
            by_q = np.zeros_like(outputs["q"])
            chosen = rows[: len(by_q)], actions[part]
            errors = outputs["q"][chosen] - targets[part]
            by_q[chosen] = np.clip(errors, -1, 1) / len(actions)  # the derivative of the Huber loss
            self.context.metrics.scalar("loss/td_error", float(np.abs(errors).mean()))
            return {"q": by_q}

        no_state, restart = np.zeros((len(actions), 0), np.float32), np.zeros((1, len(actions)), np.bool_)
        return self._online.gradient(before[None], no_state, restart, loss)
