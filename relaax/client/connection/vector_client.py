"""The client of N environments that are stepped together."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.client import ClientBase
from relaax.client.connection.failure import require_known
from relaax.client.connection.turns import Turns
from relaax.client.connection.values import fill_rows

Autoreset = Literal["same_step", "next_step", "disabled"]
_FINAL_STATES_MISSING = "a truncated episode needs its final state: give final_states"


@dataclass(frozen=True, slots=True)
class _LostEnds:
    """NEXT_STEP episodes whose end was lost with a connection.

    `mask`: environments with such an episode. `terminated`: whether it ended by the task's rule. `final`: leaves with
    the final observations.
    """

    mask: rlx.Mask
    terminated: rlx.Mask
    final: rlx.Leaves

    def fill(self, leaves: rlx.Leaves) -> rlx.Leaves:
        """Return a copy of `leaves` with the lost final observations inserted."""
        copies = [leaf.copy() for leaf in leaves]
        for leaf, last in zip(copies, self.final, strict=True):
            leaf[self.mask] = last[self.mask]
        return copies


class VectorClient(ClientBase):
    """The client of N environments that are stepped together. See `ClientBase` for the other arguments.

    `environments`: N. States and actions are batches: each array has a leading axis N, also in tuples and dicts.
    Rewards and masks have shape [N]. A mask may be None if it is all false.
    `autoreset`: how the next episode starts, in gymnasium's terms. "same_step": where an episode ended, `states` holds
    the first state of the next episode, and `final_states` the last state of the ended one. "next_step": `states`
    holds the final state; in the next message, `first` is true where the state starts an episode, and the reward there
    is void. "disabled": all episodes end together, with reset.
    `out_of_step`: whether environments may be idle: they wait for a turn, act at different rates, appear or end. The
    algorithm must support it, otherwise the first connection raises Failure.

    Usage::

        actions = client.init(states)
        while ...:
            actions = client.step(rewards, states, terminated, truncated, final_states=..., first=...)

    With `out_of_step`, `idle` marks the environments that want no action; theirs is void::

        actions = client.init(states, idle)       # an idle environment is between two episodes
        while ...:
            actions = client.step(rewards, states, terminated, truncated, final_states=..., idle=idle)

    - Playing and idle: the last action is still in progress. Reward and state are void. The next step that is not idle
      has the sum of the rewards since that action.
    - Ended and idle: the action ended the episode, and no next one begins. In "same_step" mode the state is void.
    - Not idle after that, or after an init in which it was idle: the state starts an episode, and the reward is void.

    A void state is any state of the right dtype and shape. `first` is not needed.

    With `chosen_actions`, `chosen` marks the environments that took another action than the agent's, and `actions` is
    a batch whose other rows are ignored::

        actions = client.step(rewards, states, actions=own_actions, chosen=taken_over)

    Lost connections and errors are handled as in `Client`. The outcome of an action in progress is lost too.
    """

    def __init__(
        self,
        address: str,
        *,
        environments: int,
        autoreset: Autoreset = "same_step",
        out_of_step: bool = False,
        **settings: Any,
    ) -> None:
        require_known(VectorClient.__init__, settings, ClientBase.__init__)
        if environments < 1:
            raise ValueError(f"environments is {environments}: it must be at least 1")
        modes = {mode.name.lower(): mode for mode in rlx.Autoreset}
        if autoreset not in modes:
            raise ValueError(f"autoreset is {autoreset!r}: choose one of {', '.join(modes)}")
        self._autoreset = modes[autoreset]
        super().__init__(
            address,
            _environments=environments,
            _autoreset=(self._autoreset,),
            _out_of_step=out_of_step,
            **settings,
        )
        self._turns = Turns(environments, self._autoreset) if out_of_step else None
        self._returns: npt.NDArray[np.float64] = np.zeros(environments)
        self._between: rlx.Mask | None = None  # where NEXT_STEP episodes ended with the last step
        self._lost_ends: _LostEnds | None = None

    @property
    def parameters(self) -> dict[str, npt.NDArray[np.float64]]:
        """The server's parameters for the next episode of each environment: arrays [N], by name.

        Read them whenever an environment begins an episode. Connects if there is no connection. Raises Failure,
        TrainingFinished, and RuntimeError without `environment_parameters`.
        """
        names, values = self._parameters()
        return {name: values[:, column].copy() for column, name in enumerate(names)}

    def init(self, states: Any, idle: npt.ArrayLike | None = None) -> Any:
        """Begin an episode in every environment that is not idle. Return the first actions, [N, ...]."""
        self._prepare_episode()
        rests = None if idle is None else self._idle(idle)
        actions = self._session.start(rlx.Init(self._observe.to_leaves(states, 1), idle=rests))
        self._in_episode = True
        if self._turns is not None:
            self._turns.init(rests)
        self._returns[:] = 0.0
        self._between = self._lost_ends = None
        return self._act.from_leaves(iter(actions.action), False)

    def step(
        self,
        rewards: npt.ArrayLike,
        states: Any,
        terminated: npt.ArrayLike | None = None,
        truncated: npt.ArrayLike | None = None,
        final_states: Any = None,
        first: npt.ArrayLike | None = None,
        episodes: Sequence[rlx.Episode] = (),
        idle: npt.ArrayLike | None = None,
        *,
        actions: Any = None,
        chosen: npt.ArrayLike | None = None,
    ) -> Any:
        """Send the outcome of the last actions. Return the next actions, [N, ...].

        Where both `terminated` and `truncated` are true, the episode counts as terminated.
        `final_states`: a batch; or an object array with one state for each environment, None where no episode ended
        (gymnasium's `infos["final_obs"]`). It is required in "same_step" mode where an episode was truncated.
        `idle`: where no next action is wanted; only with `out_of_step`.
        `actions`, `chosen`: a batch of actions that were really taken, and where they were not the agent's; only with
        `chosen_actions`.
        """
        self._check_in_episode()
        rewards = _rewards(rewards, len(self._returns))
        leaves = self._observe.to_leaves(states, 1)
        over, cut = _masks(terminated, truncated)
        final = self._final_leaves(leaves, final_states, cut) if cut is not None else None
        begun = _mask(first)
        rests = None if idle is None else self._idle(idle)
        step = rlx.Step(rewards, leaves, over, cut, final, begun, episodes)
        step.chosen, step.action = self._chosen(actions, chosen)
        if self._turns is not None and not self._turns.is_plain(over, cut, begun, rests):
            return self._step_out_of_step(self._turns, step, rests)
        answer = None
        if self._lost_ends is None:
            answer = self._session.step(step)
        else:
            self._end_all(self._lost_ends, rewards, leaves, over, begun, episodes)
        self._add_up(rewards, over, cut, begun)
        if answer is None:
            self._interrupted = True
            answer = self._restart(leaves, over, cut, begun)
        return self._act.from_leaves(iter(answer.action), False)

    def _step_out_of_step(self, turns: Turns, step: rlx.Step, idle: rlx.Mask | None) -> Any:
        """Send a step with the masks that the caller gave, and return the next actions."""
        over, cut, rewards = step.terminated, step.truncated, step.reward
        for name, mask in (("terminated", over), ("truncated", cut), ("first", step.first)):
            self._check_shape(name, mask)
        marks = turns.marks(over, cut, step.first, idle)
        if marks.void is not None:
            step.reward = np.where(marks.void, 0.0, rewards)
        step.terminated, step.truncated, step.first, step.idle = (
            marks.terminated,
            marks.truncated,
            marks.first,
            marks.idle,
        )
        if marks.truncated is None:
            step.final_observation = None
        answer = self._session.step(step)
        if answer is None:
            self._interrupted = True
            partial, away, marks = turns.restart(marks, idle)
            answer = self._session.start(rlx.Init(step.observation, partial, away))
        self._returns += rewards if marks.uncounted is None else np.where(marks.uncounted, 0.0, rewards)
        for mask in (over, cut):
            if mask is not None:
                self._returns[mask] = 0.0
        turns.commit(marks)
        return self._act.from_leaves(iter(answer.action), False)

    def reset(
        self,
        rewards: npt.ArrayLike,
        truncated: npt.ArrayLike | None = None,
        final_states: Any = None,
        episodes: Sequence[rlx.Episode] = (),
        *,
        actions: Any = None,
        chosen: npt.ArrayLike | None = None,
    ) -> npt.NDArray[np.float64]:
        """End the episode of every environment with the rewards of the last actions. Return the returns, [N].

        `truncated`: true where the episode was cut off, not ended by the task's rule. Then `final_states`, a batch, is
        required. Where an environment is between two episodes, reward and final state are void, and the return is 0.
        `actions`, `chosen`: as in `step`.
        """
        self._check_in_episode()
        rewards = _rewards(rewards, len(self._returns))
        cut = _mask(truncated)
        if cut is not None and final_states is None:
            raise ValueError(_FINAL_STATES_MISSING)
        final = None if final_states is None else self._observe.to_leaves(final_states, 1)
        if self._between is not None:
            rewards = np.where(self._between, 0.0, rewards)
        sent = rewards
        if self._turns is not None:
            self._check_shape("truncated", cut)
            rewards, sent, cut = self._turns.reset(rewards, cut)
            final = None if final is None else self._turns.fill_away(final)
        message = rlx.Reset(sent, cut, final, episodes, *self._chosen(actions, chosen))
        answer = self._session.reset(
            message if self._lost_ends is None else self._add_lost_ends(message, self._lost_ends)
        )
        self._in_episode = False
        self._returns += rewards
        returns: npt.NDArray[np.float64] = self._returns.copy()
        if answer is not None and not self._interrupted:
            returns = answer.episode_return
        return returns

    def _chosen(self, actions: Any, chosen: npt.ArrayLike | None) -> tuple[rlx.Mask | None, rlx.Leaves | None]:
        """Return the mask `chosen` and the leaves of `actions`; None for both if none was chosen. Raises ValueError."""
        mask = _mask(chosen)
        if mask is None:
            return None, None
        self._check_chosen_actions()
        self._check_shape("chosen", mask)
        if actions is None:
            raise ValueError("chosen marks an environment: give its action in actions")
        return mask, self._act.to_leaves(actions, 1)

    def _idle(self, idle: npt.ArrayLike) -> rlx.Mask | None:
        """Return `idle` as an array; None if it is all false. Raises ValueError."""
        mask = _mask(idle)
        if mask is not None and self._turns is None:
            raise ValueError("idle marks an environment: create the client with VectorClient(..., out_of_step=True)")
        self._check_shape("idle", mask)
        return mask

    def _check_shape(self, name: str, mask: rlx.Mask | None) -> None:
        n = len(self._returns)
        if mask is not None and mask.shape != (n,):
            raise ValueError(f"{name} has shape {list(mask.shape)}: it must hold one flag for each of {n} environments")

    def _add_up(
        self, rewards: rlx.Rewards, over: rlx.Mask | None, cut: rlx.Mask | None, begun: rlx.Mask | None
    ) -> None:
        self._returns += rewards
        for mask in (over, cut, begun):
            if mask is not None:
                self._returns[mask] = 0.0
        if self._autoreset is rlx.Autoreset.NEXT_STEP:
            self._between = over if cut is None else cut if over is None else over | cut

    def _final_leaves(self, leaves: rlx.Leaves, final_states: Any, cut: rlx.Mask) -> rlx.Leaves | None:
        if self._autoreset is not rlx.Autoreset.SAME_STEP:
            return None
        if final_states is None:
            raise ValueError(_FINAL_STATES_MISSING)
        if isinstance(final_states, np.ndarray) and final_states.dtype == object:
            for index in np.flatnonzero(cut):
                if final_states[index] is None:
                    raise ValueError(f"final_states[{index}] is None: a truncated episode needs its final state")
            return fill_rows(self._observe, leaves, final_states)
        return self._observe.to_leaves(final_states, 1)

    def _restart(
        self, leaves: rlx.Leaves, over: rlx.Mask | None, cut: rlx.Mask | None, begun: rlx.Mask | None
    ) -> rlx.Actions:
        """Start episodes from the current states, on another connection.

        The new connection does not know the episodes that ended in the lost message. In SAME_STEP mode, the states
        start new episodes. In NEXT_STEP mode they are final states, and the starts of the next episodes cannot be sent,
        because no episode has ended on this connection. So the next `step` ends all episodes with a reset (`_end_all`).
        """
        none = np.zeros(len(self._returns), np.bool_)
        over = none if over is None else over
        ended = over if cut is None else over | cut
        self._lost_ends = None
        if self._autoreset is rlx.Autoreset.SAME_STEP:
            starts = ended
        elif ended.any():
            self._lost_ends = _LostEnds(ended, over, [leaf.copy() for leaf in leaves])
            starts = none
        else:
            starts = none if begun is None else begun
        return self._session.start(rlx.Init(leaves, partial=None if starts.all() else ~starts))

    def _end_all(
        self,
        ended: _LostEnds,
        rewards: rlx.Rewards,
        leaves: rlx.Leaves,
        over: rlx.Mask | None,
        begun: rlx.Mask | None,
        episodes: Sequence[rlx.Episode],
    ) -> None:
        """End all episodes, so that all start again.

        Episodes whose end was lost get their final states. The others are truncated, except where `over` is true.
        """
        final = ended.fill(leaves)
        cut = ~ended.terminated if over is None else ~(ended.terminated | over)
        rewards = rewards if begun is None else np.where(begun, 0.0, rewards)
        self._session.reset(rlx.Reset(rewards, cut if cut.any() else None, final, episodes))

    def _add_lost_ends(self, reset: rlx.Reset, ended: _LostEnds) -> rlx.Reset:
        """Return `reset` with the lost ends, for a connection on which these episodes are still in progress."""
        cut = ended.mask & ~ended.terminated
        if reset.truncated is not None:
            cut |= reset.truncated
        final = ended.final
        if reset.final_observation is not None:
            final = ended.fill(reset.final_observation)
        return replace(reset, truncated=cut if cut.any() else None, final_observation=final)


def _rewards(rewards: npt.ArrayLike, environments: int) -> rlx.Rewards:
    """Return the rewards as float64 [N]. Raises ValueError if they are not N numbers."""
    try:
        array = np.asarray(rewards)
        if array.dtype.kind in "biuf" and array.shape == (environments,):
            return array.astype(np.float64, copy=False)
    except ValueError:  # lists of different lengths
        pass
    raise ValueError(f"rewards is {reprlib.repr(rewards)}: it must hold one number for each environment")


def _mask(mask: npt.ArrayLike | None) -> rlx.Mask | None:
    """Return the mask as an array; None if it is all false."""
    if mask is None:
        return None
    array = np.asarray(mask, np.bool_)
    return array if np.count_nonzero(array) else None


def _masks(
    terminated: npt.ArrayLike | None, truncated: npt.ArrayLike | None
) -> tuple[rlx.Mask | None, rlx.Mask | None]:
    over, cut = _mask(terminated), _mask(truncated)
    return over, cut if over is None or cut is None else _mask(cut & ~over)
