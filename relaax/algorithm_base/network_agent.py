"""An agent that acts by one network: what actor-critics and value methods have in common."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import AgentBase, AgentContext, Leaves, Mask, StepResult
from relaax.algorithm_base.network import AgentConfig, agent_statistics, history, image_part
from relaax.algorithm_base.normalization import Normalization, reward_bound
from relaax.algorithm_base.observations import ObservationEncoder, image_of
from relaax.algorithm_base.policy_graph import GreedyAction, PolicyGraph
from relaax.nn.engine import Actor, Engine, make_actor, make_engine
from relaax.nn.specification import NetworkSpec
from relaax.optim.clipping import clip_by_norm
from relaax.parameters.interfaces import Pulled

Array = npt.NDArray[np.float32]
Inputs = npt.NDArray[Any]

EXPLOIT_PULL_SECONDS = 1.0


class Gathered(Protocol):
    """What an agent keeps of its steps until it learns from them."""

    @property
    def batch_shape(self) -> tuple[int | None, int | None]:
        """T and N of every batch, None if they vary."""

    def clear(self) -> None:
        """Forget everything: all environments start anew."""


class NetworkAgent(AgentBase):
    """An agent over N environments that acts by one network and pushes gradients.

    An observation is encoded, normalised and given to the network; what is gathered keeps it as the network was given
    it. A subclass says what it gathers (`_begin`, at the end of its constructor), how it acts (`_act`), what it does
    with an outcome (`_outcome`) and when it learns (`learn`).
    """

    def __init__(self, config: AgentConfig, context: AgentContext, spec: NetworkSpec) -> None:
        super().__init__(config, context)
        n, space = context.environments, context.observation_space
        self._spec = spec
        self._image = image_part(config.network, space)
        frames = history(config.history_len, image_of(space, self._image))
        self._encoder = ObservationEncoder(space, n, frames, self._image)
        statistics = agent_statistics(config, space)
        self._normalization = Normalization(statistics, config.rewards_gamma, n, context.metrics, spec.pixels)
        self._input_dtype = self._normalization.input_dtype(self._encoder.dtype)
        self._clip = reward_bound(config.reward_clipping, space)
        self._rng = np.random.default_rng([context.seed, *context.actors])
        self._inputs: Inputs = np.zeros(0)
        self._restart: Mask = np.ones(n, np.bool_)  # where the inputs start an episode
        self._state: Array = np.zeros((n, spec.state_size), np.float32)  # what the LSTM remembers before the inputs
        self._state_after = self._state  # and after them
        self._env_steps = 0  # not pushed yet
        self._pushes = 0  # since parameters were pulled

    def _begin(self, gathered: Gathered) -> None:
        """Make the engine for batches of what is gathered, and pull the first parameters."""
        self._gathered = gathered
        self._engine: Engine | None = None
        if not self.context.exploit:
            self._engine = make_engine(self._spec, self._input_dtype, gathered.batch_shape)
        self._actor: Actor = self._engine or make_actor(self._spec, self._input_dtype)
        self._pull()

    def reset(self, observations: Leaves) -> Leaves:
        self._gathered.clear()
        self._normalization.reset()
        self._env_steps = 0
        self._see(self._encoder.reset(observations), np.ones_like(self._restart))
        return self._act()

    def step(self, step: StepResult) -> Leaves:
        if not self.context.exploit:
            self.learn()  # where nobody has asked for it
            self._normalization.gather(step)
            self._outcome(step, self._learned_rewards(step))
            self._env_steps += step.env_steps
        elif time.monotonic() - self._pulled_at > EXPLOIT_PULL_SECONDS:
            self._pull()
        self._see(self._encoder.push(step.observations, step.restart), step.restart)
        return self._act()

    def policy_graph(self) -> PolicyGraph:
        mean, std = self._normalization.mean_and_std(self._spec.inputs)
        heads, greedy = self._policy_outputs()
        parameters = self.context.parameters.pull().parameters
        frames, limit = self._encoder.history, self._normalization.limit
        return PolicyGraph(self._spec, parameters, heads, greedy, frames, mean, std, self._image, limit)

    @abstractmethod
    def _policy_outputs(self) -> tuple[tuple[str, ...], GreedyAction]:
        """Return the heads that acting needs, and how the best action follows from their outputs."""

    @abstractmethod
    def _act(self) -> Leaves:
        """Act on `_inputs`, and keep in `_state_after` what the LSTM remembers after them."""

    @abstractmethod
    def _outcome(self, step: StepResult, rewards: npt.NDArray[Any]) -> None:
        """Gather what came of the last actions. `rewards` [N] are those to learn from."""

    def _take(self, pulled: Pulled) -> None:
        """Use what was pulled from now on."""
        self._actor.set_parameters(pulled.parameters)
        self._normalization.pulled(pulled)
        self._pushes = 0

    def _see(self, inputs: Inputs, restart: Mask) -> None:
        """`inputs` come next; where `restart`, they start an episode, which remembers nothing of the one before."""
        if not self.context.exploit:
            self._normalization.see(inputs)
        self._inputs, self._restart = self._normalization.observations(inputs), restart
        if self._state_after.size:
            self._state = np.where(restart[:, None], np.float32(0), self._state_after)

    def _cut_off_inputs(self, step: StepResult) -> Inputs | None:
        """Return inputs [N, ...] after which episodes would have gone on, with their history; None if there are none.

        What an LSTM remembers before them is `_state_after`.
        """
        final = step.cut_off()
        return None if final is None else self._normalization.observations(self._encoder.peek(final))

    def _learned_rewards(self, step: StepResult) -> npt.NDArray[Any]:
        """Return the rewards [N] of a step, normalised and clipped."""
        rewards = self._normalization.rewards(step)
        return rewards if self._clip is None else np.minimum(np.maximum(rewards, -self._clip), self._clip)

    def _clipped(self, gradient: Array, scalars: Mapping[str, float]) -> Array:
        """Return the gradient, clipped by its norm in place, which is recorded beside `scalars`."""
        norm = clip_by_norm(gradient, self.config.gradient_norm_clipping)
        for name, value in (*scalars.items(), ("gradient/norm", norm)):
            self.context.metrics.scalar(name, value)
        return gradient

    def _push(self, gradient: Array | None, loss: float | None) -> None:
        """Send a gradient and the steps since the last one, and pull if it is time to."""
        self._pushes += 1
        fetch = self._pushes >= self.config.sync_interval
        pushed = self.context.parameters.push(gradient, self._env_steps, want_parameters=fetch, loss=loss)
        self._env_steps = 0
        if pushed.pulled is not None:
            self._take(pushed.pulled)

    def _pull(self) -> None:
        self._take(self.context.parameters.pull())
        self._pulled_at = time.monotonic()
