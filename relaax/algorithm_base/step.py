"""What an agent is told after its actions were carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Leaves = list[npt.NDArray[Any]]
"""One array per elementary part of a space, each with a leading axis N."""

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class StepResult:
    """The outcome of one action in each of the N environments of a connection.

    The worker brings both of gymnasium's habits of ending episodes into this one form:

    - `terminated[i]` or `truncated[i]` says that the action ended environment i's episode, whose last observation is
      row i of `final_observations`. Whatever the agent remembers of that episode (frame stack, LSTM state) ends
      there, and `observations[i]` starts afresh.
    - `first[i]` says that there was nothing to act on: the action was ignored, the reward is void and
      `observations[i]` starts an episode. Such a transition belongs into no loss and no counter.

    `rewards`: float64 [N]; the masks: bool [N]; `observations` and `final_observations`: leaves [N, ...]. None of them
    may be written: leaves are views of what came over the wire, and messages may share masks.
    `final_observations` is None if no episode ended.

    `ended`: where an episode ended, either way. `restart`: where `observations` starts one. `plain`: nothing is marked
    anywhere, as in most steps; the three masks are then one and the same array (no environment could be marked in all
    of them), and so are these two.
    """

    rewards: npt.NDArray[np.float64]
    observations: Leaves
    terminated: Mask
    truncated: Mask
    first: Mask
    final_observations: Leaves | None = None
    ended: Mask = field(init=False)
    restart: Mask = field(init=False)
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.plain = self.terminated is self.truncated is self.first
        if self.plain:
            self.ended = self.restart = self.first
            return
        self.ended = self.terminated | self.truncated
        self.restart = self.ended | self.first

    def cut_off(self) -> Leaves | None:
        """Return the final observations of truncated episodes, leaves [N, ...]; None if there is none.

        Elsewhere final observations may hold anything, so what is seen next stands in for them.
        """
        if self.final_observations is None or not self.truncated.any():
            return None
        leaves = zip(self.final_observations, self.observations, strict=True)
        return [np.where(self.truncated.reshape(-1, *[1] * (f.ndim - 1)), f, seen) for f, seen in leaves]

    @property
    def env_steps(self) -> int:
        """How many of the N actions counted."""
        return self.first.size if self.plain else int(self.first.size - np.count_nonzero(self.first))
