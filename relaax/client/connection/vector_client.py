"""The client of N environments that are stepped together."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.client.connection.client import ClientBase
from relaax.client.connection.failure import require_known
from relaax.client.connection.values import fill_rows

Autoreset = Literal["same_step", "next_step", "disabled"]


@dataclass(frozen=True, slots=True)
class _Ended:
    """NEXT_STEP episodes whose end was lost with a connection: which, by the task's rule or not, final observations."""

    mask: rlx.Mask
    terminated: rlx.Mask
    final: rlx.Leaves


class VectorClient(ClientBase):
    """N environments' way to their agent, in one message per step. See `ClientBase` for the other arguments.

    `environments`: N. States and actions are batches: every array has a leading axis N, in tuples and dicts too.
    Rewards and masks have shape [N]; a mask may be None if nothing is true.
    `autoreset` says how one episode follows another, in gymnasium's words. "same_step": `states` holds the new
    episode's first state where one ended, and `final_states` the ended one's last. "next_step": `states` holds the
    final state, and the next message says `first` where the state starts an episode and the reward is void.
    "disabled": all episodes end together, with reset.

    The life of a client::

        actions = client.init(states)
        while ...:
            actions = client.step(rewards, states, terminated, truncated, final_states=..., first=...)

    What `Client` says about lost connections and errors holds here.
    """

    def __init__(self, address: str, *, environments: int, autoreset: Autoreset = "same_step", **settings: Any) -> None:
        require_known(VectorClient.__init__, settings, ClientBase.__init__)
        if environments < 1:
            raise ValueError(f"environments is {environments}: there must be at least one")
        modes = {mode.name.lower(): mode for mode in rlx.Autoreset}
        if autoreset not in modes:
            raise ValueError(f"autoreset is {autoreset!r}: choose one of {', '.join(modes)}")
        self._autoreset = modes[autoreset]
        super().__init__(address, _environments=environments, _autoreset=(self._autoreset,), **settings)
        self._returns: npt.NDArray[np.float64] = np.zeros(environments)
        self._between: rlx.Mask | None = None  # where NEXT_STEP episodes ended with the last step
        self._ended: _Ended | None = None

    def init(self, states: Any) -> Any:
        """Begin an episode in every environment; return the first actions, [N, ...]."""
        self._begin()
        actions = self._session.start(rlx.Init(self._observe.leaves(states, 1)))
        self._in_episode = True
        self._returns[:] = 0.0
        self._between = self._ended = None
        return self._act.take(iter(actions.action), False)

    def step(
        self,
        rewards: npt.ArrayLike,
        states: Any,
        terminated: npt.ArrayLike | None = None,
        truncated: npt.ArrayLike | None = None,
        final_states: Any = None,
        first: npt.ArrayLike | None = None,
        episodes: Sequence[rlx.Episode] = (),
    ) -> Any:
        """Send the outcome of the last actions; return the next ones, [N, ...].

        An environment that says both terminated and truncated is terminated: its episode ended by the task's rule.
        `final_states`: a batch, or an object array with one state for each environment and None if no episode ended
        (gymnasium's `infos["final_obs"]`); needed in "same_step" where an episode was truncated.
        """
        self._check_begun()
        rewards = _rewards(rewards)
        leaves = self._observe.leaves(states, 1)
        over, cut = _masks(terminated, truncated)
        final = self._final_leaves(leaves, final_states, cut) if cut is not None else None
        begun = _mask(first)
        if self._ended is None:
            step = rlx.Step(rewards, leaves, over, cut, final, begun, episodes)
            actions = self._session.step(step)
        else:
            self._renew(self._ended, rewards, leaves, over, begun, episodes)
            actions = None
        self._add_up(rewards, over, cut, begun)
        if actions is None:
            self._interrupted = True
            actions = self._resume(leaves, over, cut, begun)
        return self._act.take(iter(actions.action), False)

    def reset(
        self,
        rewards: npt.ArrayLike,
        truncated: npt.ArrayLike | None = None,
        final_states: Any = None,
        episodes: Sequence[rlx.Episode] = (),
    ) -> npt.NDArray[np.float64]:
        """End the episode of every environment with the last actions' rewards; the episodes' returns, [N].

        `truncated`: where true, the episode was cut off rather than ended by the task's rule; then `final_states`, a
        batch, is needed. An environment whose episode ended with the step before ("next_step") has none to end: its
        reward is void and its return 0.
        """
        self._check_begun()
        rewards = _rewards(rewards)
        cut = _mask(truncated)
        if cut is not None and final_states is None:
            raise ValueError("a truncated episode needs its final state: give final_states")
        final = None if final_states is None else self._observe.leaves(final_states, 1)
        if self._between is not None:
            rewards = np.where(self._between, 0.0, rewards)
        message = rlx.Reset(rewards, cut, final, episodes)
        answer = self._session.reset(message if self._ended is None else self._with_lost_ends(message, self._ended))
        self._in_episode = False
        self._returns += rewards
        returns: npt.NDArray[np.float64] = self._returns.copy()
        if answer is not None and not self._interrupted:
            returns = answer.episode_return
        return returns

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
            raise ValueError("a truncated episode needs its final state: give final_states")
        if isinstance(final_states, np.ndarray) and final_states.dtype == object:
            for index in np.flatnonzero(cut):
                if final_states[index] is None:
                    raise ValueError(f"final_states[{index}] is None: a truncated episode needs its final state")
            return fill_rows(self._observe, leaves, final_states)
        return self._observe.leaves(final_states, 1)

    def _resume(
        self, leaves: rlx.Leaves, over: rlx.Mask | None, cut: rlx.Mask | None, begun: rlx.Mask | None
    ) -> rlx.Actions:
        """Begin anew, on another connection, with the current states.

        The new connection knows nothing of what ended in the lost message. In SAME_STEP that is well: the states start
        episodes. In NEXT_STEP they are final, and the environments will start episodes that this connection cannot be
        told of, because nothing ended on it: `_renew` sees to that with the next message.
        """
        none = np.zeros(len(self._returns), np.bool_)
        over = none if over is None else over
        ended = over if cut is None else over | cut
        self._ended = None
        if self._autoreset is rlx.Autoreset.SAME_STEP:
            starts = ended
        elif ended.any():
            self._ended = _Ended(ended, over, [leaf.copy() for leaf in leaves])
            starts = none
        else:
            starts = none if begun is None else begun
        return self._session.start(rlx.Init(leaves, partial=None if starts.all() else ~starts))

    def _renew(
        self,
        ended: _Ended,
        rewards: rlx.Rewards,
        leaves: rlx.Leaves,
        over: rlx.Mask | None,
        begun: rlx.Mask | None,
        episodes: Sequence[rlx.Episode],
    ) -> None:
        """End all episodes, the lost ends with their final states and the others as cut off, so that all begin anew."""
        final = [leaf.copy() for leaf in leaves]
        for leaf, last in zip(final, ended.final, strict=True):
            leaf[ended.mask] = last[ended.mask]
        cut = ~ended.terminated if over is None else ~(ended.terminated | over)
        rewards = rewards if begun is None else np.where(begun, 0.0, rewards)
        self._session.reset(rlx.Reset(rewards, cut if cut.any() else None, final, episodes))

    def _with_lost_ends(self, reset: rlx.Reset, ended: _Ended) -> rlx.Reset:
        """For a connection that never heard of these ends, and has those episodes under way."""
        cut = ended.mask & ~ended.terminated
        if reset.truncated is not None:
            cut |= reset.truncated
        final = ended.final
        if reset.final_observation is not None:
            final = [leaf.copy() for leaf in reset.final_observation]
            for leaf, last in zip(final, ended.final, strict=True):
                leaf[ended.mask] = last[ended.mask]
        return rlx.Reset(reset.reward, cut if cut.any() else None, final, reset.episodes)


def _rewards(rewards: npt.ArrayLike) -> rlx.Rewards:
    """Return the rewards as an array. Raises ValueError if they are no numbers."""
    try:
        array = np.asarray(rewards)
        if array.dtype.kind in "biuf" and array.ndim == 1:
            return array.astype(np.float64, copy=False)
    except ValueError:  # lists of different lengths
        pass
    raise ValueError(f"rewards is {reprlib.repr(rewards)}: it must hold one number for each environment")


def _mask(mask: npt.ArrayLike | None) -> rlx.Mask | None:
    """Return the mask as an array, None if nothing is true."""
    if mask is None:
        return None
    array = np.asarray(mask, np.bool_)
    return array if np.count_nonzero(array) else None


def _masks(
    terminated: npt.ArrayLike | None, truncated: npt.ArrayLike | None
) -> tuple[rlx.Mask | None, rlx.Mask | None]:
    over, cut = _mask(terminated), _mask(truncated)
    if over is not None and cut is not None:
        cut = _mask(cut & ~over)
    return over, cut
