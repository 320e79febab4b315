"""From what environments show to what a network is given and learns from."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.agent import AgentContext, Leaves, Mask, StepResult
from relaax.algorithm_base.network import AgentConfig, agent_statistics, history, image_of, image_part, reward_bound
from relaax.algorithm_base.normalization import Normalization
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.algorithm_base.policy_graph import GreedyAction, PolicyGraph
from relaax.nn.specification import NetworkSpec
from relaax.parameters.interfaces import Pulled

Array = npt.NDArray[Any]


class Inputs:
    """What the network of an agent over N environments is given next, and the rewards of what it did before.

    An observation is encoded, images with the frames before them, and normalised by statistics of all workers.

    `newest`: [N, *spec.inputs], for the network; images are overwritten by the next call. `seen`: the same before
    normalisation. `restart`: bool [N], where they start an episode. `state`: float32 [N, S], what the LSTM remembers
    before them. Whoever has the network act on them sets `state_after` to what it remembers then.
    """

    def __init__(self, config: AgentConfig, context: AgentContext, spec: NetworkSpec) -> None:
        n, space = context.environments, context.observation_space
        self._spec, self._image, self._learns = spec, image_part(config.network, space), not context.exploit
        frames = history(config.history_len, image_of(space, self._image))
        self._encoder = ObservationEncoder(space, n, frames, self._image)
        statistics = agent_statistics(config, space)
        self.normalization = Normalization(statistics, config.rewards_gamma, n, context.metrics, spec.pixels)
        self.normalized = self.normalization.observations
        """Inputs [N, ...] as the network is given them; images are overwritten by the next call."""
        self.dtype = self.normalization.input_dtype(self._encoder.dtype)
        self._bound = reward_bound(config.reward_clipping, space)
        self.newest: Array = np.zeros(0)
        self.seen = self.newest
        self.restart: Mask = np.ones(n, np.bool_)
        self.state: npt.NDArray[np.float32] = np.zeros((n, spec.state_size), np.float32)
        self.state_after = self.state

    def reset(self, observations: Leaves) -> None:
        """Every environment starts an episode with these observations."""
        self.normalization.reset()
        self._see(self._encoder.reset(observations), np.ones_like(self.restart))

    def next(self, step: StepResult) -> None:
        """Take the observations of a step: its outcome has been learned from."""
        self._see(self._encoder.push(step.observations, step.restart), step.restart)

    def clipped_rewards(self, step: StepResult) -> Array:
        """Return the rewards [N] to learn from: normalised, then cut to plus and minus `reward_clipping`.

        The step counts in the statistics of all workers from now on.
        """
        self.normalization.gather(step)
        rewards = self.normalization.rewards(step)
        return rewards if self._bound is None else np.minimum(np.maximum(rewards, -self._bound), self._bound)

    def cut_off(self, step: StepResult) -> Array | None:
        """Return inputs [N, ...], not normalised, after which truncated episodes would have gone on; None without any.

        What an LSTM remembers before them is `state_after`.
        """
        final = step.cut_off()
        return None if final is None else self._encoder.peek(final)

    def pulled(self, pulled: Pulled) -> None:
        """Use new statistics."""
        self.normalization.pulled(pulled)

    def policy_graph(
        self, parameters: npt.NDArray[np.float32], heads: tuple[str, ...], greedy: GreedyAction
    ) -> PolicyGraph:
        """Return what is computed to act with these parameters: from `heads` the greedy action follows."""
        mean, std = self.normalization.mean_and_std(self._spec.inputs)
        frames, limit = self._encoder.history, self.normalization.limit
        return PolicyGraph(self._spec, parameters, heads, greedy, frames, mean, std, self._image, limit)

    def _see(self, inputs: Array, restart: Mask) -> None:
        if self._learns:
            self.normalization.see(inputs)
        self.seen, self.newest, self.restart = inputs, self.normalized(inputs), restart
        if self.state_after.size:  # an episode remembers nothing of the one before
            self.state = np.where(restart[:, None], np.float32(0), self.state_after)
