"""REINFORCE (Williams 1992), which learns only from the returns of whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, PositiveInt

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Discrete, Free, Leaves, Pulled, StepResult
from relaax.algorithm_base.declarations import ParameterServerBase
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.network import input_refusal, input_shape, is_image
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.algorithm_base.values import n_step_returns
from relaax.nn.distributions import Categorical
from relaax.nn.engine import make_engine
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import NetworkSpec


class Config(ConfigBase):
    """The keys of the section `algorithm`, besides the keys of every algorithm."""

    rewards_gamma: Free[float] = Field(0.99, ge=0, le=1, description="Discount of the reward one step later.")
    episodes_per_update: Free[int] = Field(8, ge=1, description="Whole episodes per gradient.")
    dense: list[PositiveInt] = Field([64], description="Widths of the fully connected layers.")


def policy_network(config: Config, observation_space: Any, action_space: Any) -> NetworkSpec:
    """Return the network from an observation to one number for each action."""
    heads = Categorical(action_space.n).heads
    return NetworkSpec(input_shape(observation_space, 1), heads, tuple(config.dense), activation="tanh")


class ParameterServer(ParameterServerBase):
    """Define the model, a flat vector of numbers. The configured optimizer applies gradients."""

    def initial_parameters(self, seed: int) -> Any:
        spec = policy_network(self.config, self.observation_space, self.action_space)
        return orthogonal_parameters(spec, seed, {"policy": 0.01})  # a small head prefers no action


class Agent(AgentBase):
    """Act in N environments at once, and push a gradient whenever enough episodes have ended."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        assert isinstance(context.action_space, Discrete)  # other spaces were refused
        spec = policy_network(config, context.observation_space, context.action_space)
        self._engine = make_engine(spec, np.float32, (None, 1))
        self._policy = Categorical(context.action_space.n)
        self._first_action = context.action_space.start
        self._encoder = ObservationEncoder(context.observation_space, context.environments, history=1)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._no_state = np.zeros((context.environments, 0), np.float32)  # there is no LSTM
        self._ended: list[list[Any]] = []
        self._exchange = Exchange(config, context)
        self._use(self._exchange.pull())

    @classmethod
    def refusal(cls, config: Any, observation_space: Any, action_space: Any) -> str | None:
        if not isinstance(action_space, Discrete):
            return f"reinforce cannot handle the action space {action_space}; it handles Discrete"
        if is_image(observation_space):
            return f"reinforce cannot handle the observation space {observation_space}; it has no convolutions"
        return input_refusal(observation_space)

    def reset(self, observations: Leaves) -> Leaves:
        self._running: list[list[Any]] = [[] for _ in range(self.context.environments)]
        return self._act(self._encoder.reset(observations))

    def step(self, step: StepResult) -> Leaves:
        if not self.context.exploit:
            self._record(step)
        elif step.ended.any():
            self._use(self._exchange.pull())
        return self._act(self._encoder.push(step.observations, step.ended | step.first))

    def _act(self, inputs: Any) -> Leaves:
        outputs, _ = self._engine.act(inputs, self._no_state)
        actions = self._policy.mode(outputs) if self.context.exploit else self._policy.sample(outputs, self._rng)
        self._inputs, self._actions = inputs, actions
        return [actions.astype(np.int64) + self._first_action]

    def _record(self, step: StepResult) -> None:
        self._exchange.env_steps += step.env_steps
        for i in np.flatnonzero(~step.first):  # the first observation follows no action
            self._running[i].append((self._inputs[i], self._actions[i], step.rewards[i]))
            if step.ended[i]:
                self._ended.append(self._running[i])
                self._running[i] = []
        if len(self._ended) >= self.config.episodes_per_update:
            self._update()

    def _update(self) -> None:
        steps = [step for episode in self._ended for step in episode]
        inputs, actions, _ = (np.array(column) for column in zip(*steps, strict=True))
        returns = np.concatenate([self._returns(episode) for episode in self._ended])
        advantages = (returns - returns.mean()) / (returns.std() + 1e-6)
        self._use(self._exchange.push(self._gradient(inputs, actions, advantages.astype(np.float32))))
        self._ended = []

    def _use(self, pulled: Pulled | None) -> None:
        if pulled is not None:
            self._engine.set_parameters(pulled.parameters)

    def _returns(self, episode: list[Any]) -> Any:
        r_t = np.array([[reward] for _, _, reward in episode], np.float32)
        return n_step_returns(r_t, np.full_like(r_t, self.config.rewards_gamma), np.zeros(1, np.float32))[:, 0]

    def _gradient(self, inputs: Any, actions: Any, advantages: Any) -> Any:
        """Return the gradient of the mean of -log pi(a_t | s_t) * A_t."""

        def loss(outputs: Any, part: slice) -> Any:
            by_log_probability = -advantages[part] / len(advantages)
            return self._policy.gradient(outputs, actions[part], by_log_probability, 0 * by_log_probability)[0]

        return self._engine.gradient(inputs[:, None], self._no_state[:1], np.zeros((len(inputs), 1), np.bool_), loss)
