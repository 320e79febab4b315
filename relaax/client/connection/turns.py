"""The places of environments out of step: which are away, for the caller and for the server."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from relaax import rlx

Mask = rlx.Mask


@dataclass(frozen=True, slots=True)
class Marks:
    """The masks of a step, as a message carries them. None: all false.

    `void`: environments whose reward has no meaning for the server. `uncounted`: those whose reward belongs to no
    episode of the caller. `begun`: environments whose observation starts an episode. `away`, `lost`: `Turns` after the
    step.
    """

    terminated: Mask | None = None
    truncated: Mask | None = None
    first: Mask | None = None
    idle: Mask | None = None
    void: Mask | None = None
    uncounted: Mask | None = None
    begun: Mask | None = None
    away: Mask | None = None
    lost: Mask | None = None


class Turns:
    """The environments of a connection that are away, bool [N] or None.

    `away`: between two episodes. `lost`: playing, but away for the server: their action was lost with an earlier
    connection, so they come with `first` although their episode continues, and an end without a new action is not sent.
    """

    def __init__(self, environments: int, autoreset: rlx.Autoreset) -> None:
        self._none: Mask = np.zeros(environments, np.bool_)
        self._ends_in_steps = autoreset is not rlx.Autoreset.DISABLED
        self._next_step = autoreset is rlx.Autoreset.NEXT_STEP
        self.away: Mask | None = None
        self.lost: Mask | None = None

    def init(self, idle: Mask | None) -> None:
        """Begin an episode in every environment that is not idle."""
        self.away, self.lost = None if idle is None else idle.copy(), None  # the caller may change its array

    def is_plain(self, over: Mask | None, cut: Mask | None, first: Mask | None, idle: Mask | None) -> bool:
        """Return whether a step needs no `marks`: no environment is away, ends or is idle."""
        return over is cut is first is idle is self.away is self.lost is None

    def marks(self, over: Mask | None, cut: Mask | None, first: Mask | None, idle: Mask | None) -> Marks:
        """Return the marks of a step whose environments terminated (`over`), were truncated (`cut`) or are idle.

        `first`: None, or what the caller computed itself. Raises ValueError.
        """
        none = self._none
        ended = (none if over is None else over) | (none if cut is None else cut)
        away = none if self.away is None else self.away
        rests = none if idle is None else idle
        if (wrong := ended & away).any():
            raise ValueError(
                f"terminated or truncated marks environment {np.argmax(wrong)}, which is between two episodes: "
                "the next one begins in a step in which the environment is not idle"
            )
        came = away & ~rests
        if first is not None and not np.array_equal(first, came):
            raise ValueError(
                f"first marks the environments {_indices(first)}, but episodes begin in {_indices(came)}: leave first "
                "out, because a client out of step computes it"
            )
        held = rests & ~ended
        away_after = (away & rests) | (ended if self._next_step else ended & rests)
        begun = came if self._next_step else came | (ended & ~rests)
        sent_first, sent_idle, lost_after = came, rests, none
        if self.lost is not None:
            # The server has no episode of these environments, so it gets no end of them.
            unsent = ended & self.lost if self._ends_in_steps else none
            over, cut = (None if mask is None else _none_if_empty(mask & ~unsent) for mask in (over, cut))
            ended = ended & ~unsent
            sent_idle = rests | unsent if self._next_step else rests
            sent_first = (away | self.lost) & ~sent_idle
            lost_after = self.lost & held
        return Marks(
            over,
            cut,
            _none_if_empty(sent_first),
            _none_if_empty(sent_idle),
            _none_if_empty(sent_first | (sent_idle & ~ended)),
            _none_if_empty(held | came),
            _none_if_empty(begun),
            _none_if_empty(away_after),
            _none_if_empty(lost_after),
        )

    def commit(self, marks: Marks) -> None:
        """Record that the step with these marks was sent."""
        self.away, self.lost = marks.away, marks.lost

    def restart(self, marks: Marks, idle: Mask | None) -> tuple[Mask | None, Mask | None, Marks]:
        """Return `partial` and `idle` of the init that replaces a lost step, and the marks to commit after it.

        `idle`: the caller's mask of that step. Actions in progress are lost, so their environments are away for the
        server.
        """
        none = self._none
        away = none if marks.away is None else marks.away
        lost = none if idle is None else idle & ~away
        partial = ~(away | (none if marks.begun is None else marks.begun))
        return _none_if_empty(partial), _none_if_empty(away | lost), replace(marks, lost=_none_if_empty(lost))

    def reset(self, rewards: rlx.Rewards, cut: Mask | None) -> tuple[rlx.Rewards, rlx.Rewards, Mask | None]:
        """Return the rewards that count for the caller, and rewards and truncations to send. Raises ValueError."""
        counted = rewards
        if self.away is not None:
            if cut is not None and (wrong := cut & self.away).any():
                raise ValueError(
                    f"truncated must be false for environment {np.argmax(wrong)}, because its episode ended before"
                )
            counted = rewards = np.where(self.away, 0.0, rewards)
        if self.lost is not None:
            rewards = np.where(self.lost, 0.0, rewards)
            cut = None if cut is None else _none_if_empty(cut & ~self.lost)
        return counted, rewards, cut

    def fill_away(self, leaves: rlx.Leaves) -> rlx.Leaves | None:
        """Return final observations in which environments that are away have a legal row; None if all are away."""
        if self.away is None:
            return leaves
        if self.away.all():
            return None
        playing = int(np.argmin(self.away))
        filled = [leaf.copy() for leaf in leaves]
        for leaf in filled:
            leaf[self.away] = leaf[playing]
        return filled


def _none_if_empty(mask: Mask) -> Mask | None:
    return mask if mask.any() else None


def _indices(mask: Mask) -> list[int]:
    indices: list[int] = np.flatnonzero(mask).tolist()
    return indices
