"""Network inputs and learned rewards: encoding, frame stacks, normalisation and clipping in one class."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base.acting.masks import ActionMasks, mask_part, without_mask
from relaax.algorithm_base.acting.policy_graph import GreedyAction, PolicyGraph
from relaax.algorithm_base.agent import AgentContext, Leaves, Mask, StepResult
from relaax.algorithm_base.network import AgentConfig, agent_statistics, history, image_of, image_part, reward_bound
from relaax.algorithm_base.normalization import Normalization
from relaax.algorithm_base.observations import ObservationEncoder
from relaax.nn.specification import NetworkSpec
from relaax.parameters.interfaces import Pulled
from relaax.rlx.action_masks import choices_of

Array = npt.NDArray[Any]


class Inputs:
    """The next network inputs of an agent over N environments, and the rewards that it learns from.

    Observations are encoded and normalised by the statistics of all workers. Images are stacked with the frames before
    them.

    `newest`: [N, *spec.inputs], normalised inputs; the next call overwrites images. `unnormalized`: the same inputs
    before normalisation. `restart`: bool [N], where these inputs start an episode. `state`: float32 [N, S], the LSTM's
    state before these inputs. `state_after`: the LSTM's state after them; the agent sets it when the network acts.
    `valid`: bool [N, choices], the actions that are valid now; None if observations have no action mask.

    `held`: bool [N], where the last action is still in progress (`StepResult.held`); None if no row is held. In held
    rows, the attributes above do not change.

    `unwanted`: bool [N], where the environment will ignore the next action; None if all wait for it.
    """

    def __init__(
        self, config: AgentConfig, context: AgentContext, spec: NetworkSpec, mean_in_network: bool = True
    ) -> None:
        """`mean_in_network`: whether the agent passes `mean_image` to its network (`Actor.set_parameters`)."""
        n, space = context.environments, without_mask(config.action_mask, context.observation_space)
        self._mask_part = part = mask_part(config.action_mask, context.observation_space)
        choices = choices_of(context.action_space)
        self._masks = None if part is None else ActionMasks(part, choices, str(config.action_mask))
        self._steps, self._out_of_step = 0, context.out_of_step
        self._spec, self._image, self._learns = spec, image_part(config.network, space), not context.exploit
        frames = history(config.history_len, image_of(space, self._image))
        self._encoder = ObservationEncoder(space, n, frames, self._image)
        statistics = agent_statistics(config, context.observation_space)
        self.normalization = Normalization(
            statistics, config.rewards_gamma, n, context.metrics, spec.pixels, mean_in_network
        )
        self.normalized = self.normalization.observations
        """Function that normalises inputs [N, ...]. The next call overwrites its array of images."""
        self.dtype = self.normalization.input_dtype(self._encoder.dtype)
        self._bound = reward_bound(config.reward_clipping, space)
        self.newest: Array = np.zeros(0)
        self.unnormalized = self.newest
        self.mean_image: npt.NDArray[np.float32] | None = None
        """The argument `mean` of the network's `set_parameters`, after each `set_statistics`. While a rollout is
        collected, it does not change."""
        self.restart: Mask = np.ones(n, np.bool_)
        self.held: Mask | None = None
        self.unwanted: Mask | None = None
        self.valid: Mask | None = None
        self.mask_size = 0 if part is None else sum(choices)
        """Elements of an environment's action mask; 0 without masks."""
        self.state: npt.NDArray[np.float32] = np.zeros((n, spec.state_size), np.float32)
        self.state_after = self.state

    def reset(self, observations: Leaves) -> None:
        """Start an episode in every environment with these observations."""
        self.normalization.reset()
        self.held = self.unwanted = None
        self._read_mask(observations, None, None)
        self._set_inputs(self._encoder.reset(self._without_mask(observations)), np.ones_like(self.restart), None)

    def next(self, step: StepResult) -> None:
        """Set the inputs to the observations of a step. Call it after the step's outcome has been processed."""
        void = step.unwanted if self._out_of_step else None
        self.held, self.unwanted = step.held, step.unwanted
        self._read_mask(step.observations, step.unwanted, void)
        inputs = self._encoder.push(self._without_mask(step.observations), step.restart, void)
        self._set_inputs(inputs, step.restart, void)

    def keep_held(self, before: Array, after: Array) -> Array:
        """Return `after` [N, ...], with the rows of `before` where a row is held."""
        return after if self.held is None else _where(self.held, before, after)

    def clipped_rewards(self, step: StepResult) -> Array:
        """Return the rewards [N] to learn from: normalised, then clipped to plus or minus `reward_clipping`.

        This adds the step to the statistics of all workers.
        """
        self.normalization.add_outcome(step)
        rewards = self.normalization.rewards(step)
        return rewards if self._bound is None else np.minimum(np.maximum(rewards, -self._bound), self._bound)

    def truncated_inputs(self, step: StepResult) -> Array | None:
        """Return the inputs [N, ...] of final observations, not normalised; None if no episode was truncated.

        An LSTM's state before these inputs is `state_after`.
        """
        final = step.cut_off()
        if final is None:
            return None
        inputs = self._encoder.peek(self._without_mask(final))
        return _where(step.truncated, inputs, self.unnormalized) if self._out_of_step else inputs

    def truncated_valid(self, step: StepResult) -> Mask | None:
        """Return the valid actions of final observations, bool [N, choices]; None without masks or truncated episodes.

        A final observation without a valid action counts as one in which all actions are valid.
        """
        final = step.final_observations
        if self._masks is None or self.valid is None or final is None or not step.truncated.any():
            return None
        return _where(step.truncated, self._masks.read(final)[0], self.valid)

    def set_statistics(self, pulled: Pulled) -> None:
        """Normalise by the statistics of `pulled` from now on."""
        self.normalization.set_statistics(pulled)
        self.mean_image = self.normalization.mean_image(self._spec.inputs)

    def policy_graph(
        self, parameters: npt.NDArray[np.float32], heads: tuple[str, ...], greedy: tuple[GreedyAction, ...]
    ) -> PolicyGraph:
        """Return the greedy policy with these parameters as data. `heads`: the outputs that `greedy` uses."""
        mean, std = self.normalization.mean_and_std(self._spec.inputs)
        frames, limit = self._encoder.history, self.normalization.limit
        return PolicyGraph(
            self._spec, parameters, heads, greedy, frames, mean, std, self._image, limit, self._mask_part
        )

    def _without_mask(self, observations: Leaves) -> Leaves:
        return self._masks.inputs_of(observations) if self._masks else observations

    def _read_mask(self, observations: Leaves, unwanted: Mask | None, void: Mask | None) -> None:
        """Set `valid`. Raises InvalidObservation if a wanted action has none. Environments in `unwanted` need none.

        Where `void` (bool [N]), the observation has no meaning, and `valid` does not change.
        """
        self._steps += 1
        if self._masks:
            before = self.valid
            self.valid, blocked = self._masks.read(observations)
            self._masks.check(blocked if unwanted is None else blocked & ~unwanted, self._steps)
            if void is not None and before is not None:
                self.valid = _where(void, before, self.valid)

    def _set_inputs(self, inputs: Array, restart: Mask, void: Mask | None) -> None:
        if void is not None and inputs.dtype != np.uint8:  # stacks of frames have not changed there
            inputs = _where(void, self.unnormalized, inputs)
        if self._learns:
            self.normalization.set_inputs(inputs)
        self.unnormalized, self.newest = inputs, self.normalized(inputs)
        self.restart = self.keep_held(self.restart, restart)
        if self.state_after.size:  # an episode starts with a zero state
            state = np.where(restart[:, None], np.float32(0), self.state_after)
            self.state = self.keep_held(self.state, state)


def _where(rows: Mask, chosen: Array, other: Array) -> Array:
    """Return `other` [N, ...] with the rows of `chosen` where `rows` (bool [N]) is true."""
    merged: Array = np.where(rows.reshape(-1, *[1] * (other.ndim - 1)), chosen, other)
    return merged
