"""REINFORCE (Williams 1992), which learns only from the returns of whole episodes. PyTorch computes the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import nn

from relaax.algorithm_base import AgentBase, AgentContext, ConfigBase, Discrete, Free, Leaves, Pulled, StepResult
from relaax.algorithm_base.declarations import ParameterServerBase
from relaax.algorithm_base.exchange import Exchange
from relaax.algorithm_base.network import input_refusal, input_shape, is_image
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.algorithm_base.values import n_step_returns


class Config(ConfigBase):
    """The keys of the section `algorithm`, besides the keys of every algorithm."""

    rewards_gamma: Free[float] = Field(0.99, ge=0, le=1, description="Discount of the reward one step later.")
    episodes_per_update: Free[int] = Field(8, ge=1, description="Whole episodes per gradient.")
    dense: list[PositiveInt] = Field([64], description="Widths of the fully connected layers.")


class PolicyNetwork(nn.Module):
    """The network from observations, float32 [B, ...], to logits of the actions, float32 [B, n]."""

    def __init__(self, config: Config, observation_space: Any, action_space: Any) -> None:
        super().__init__()
        (width,) = input_shape(observation_space, 1)
        layers: list[nn.Module] = []
        for size in config.dense:
            layers += [nn.Linear(width, size), nn.Tanh()]
            width = size
        head = nn.Linear(width, action_space.n)
        with torch.no_grad():
            head.weight.mul_(0.01)  # a small head prefers no action
        self.layers = nn.Sequential(*layers, head)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(inputs)
        return logits

    def use(self, parameters: Any) -> None:
        """Copy the vector of the parameter server, float32 [P], into the network."""
        nn.utils.vector_to_parameters(torch.tensor(parameters), self.parameters())

    def gradient(self, loss: torch.Tensor) -> Any:
        """Return the derivative of a loss with respect to the vector, float32 [P]."""
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(self.parameters()))]).numpy()


class ParameterServer(ParameterServerBase):
    """Define the model, a flat vector of numbers. The configured optimizer applies gradients."""

    def initial_parameters(self, seed: int) -> Any:
        torch.manual_seed(seed)
        network = PolicyNetwork(self.config, self.observation_space, self.action_space)
        return nn.utils.parameters_to_vector(network.parameters()).detach().numpy()


class Agent(AgentBase):
    """Act in N environments at once, and push a gradient whenever enough episodes have ended."""

    def __init__(self, config: Config, context: AgentContext) -> None:
        super().__init__(config, context)
        assert isinstance(context.action_space, Discrete)  # other spaces were refused
        torch.set_num_threads(1)  # other workers use the other cores
        self._network = PolicyNetwork(config, context.observation_space, context.action_space)
        self._first_action = context.action_space.start
        self._encoder = ObservationEncoder(context.observation_space, context.environments, history=1)
        self._rng = torch.Generator().manual_seed(hash((context.seed, *context.actors)) % 2**63)
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
        with torch.inference_mode():
            logits = self._network(torch.tensor(inputs))
            if self.context.exploit:
                actions = logits.argmax(1)
            else:
                actions = torch.multinomial(logits.softmax(1), 1, generator=self._rng)[:, 0]
        self._inputs, self._actions = inputs, actions.numpy()
        return [self._actions + self._first_action]

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
        inputs, actions, _ = (torch.tensor(np.array(column)) for column in zip(*steps, strict=True))
        returns = np.concatenate([self._returns(episode) for episode in self._ended])
        advantages = torch.tensor((returns - returns.mean()) / (returns.std() + 1e-6))
        log_probabilities = self._network(inputs).log_softmax(1).gather(1, actions[:, None])[:, 0]
        loss = -(log_probabilities * advantages).mean()
        self._use(self._exchange.push(self._network.gradient(loss), loss.item()))
        self._ended = []

    def _use(self, pulled: Pulled | None) -> None:
        if pulled is not None:
            self._network.use(pulled.parameters)

    def _returns(self, episode: list[Any]) -> Any:
        r_t = np.array([[reward] for _, _, reward in episode], np.float32)
        return n_step_returns(r_t, np.full_like(r_t, self.config.rewards_gamma), np.zeros(1, np.float32))[:, 0]
