"""Limits of a check of environments, and the episodes that were played within them."""

from __future__ import annotations

import time
from dataclasses import dataclass

from relaax.client.check_report import Findings

_LONG = 10  # steps; shorter episodes have equal lengths by chance, and do not make later ones of one step suspicious
_SEVERAL = 3  # episodes


@dataclass
class CheckLimits:
    """Limits of a check, and a count of the episodes that were played."""

    episodes: int
    steps: int
    seconds: float
    lengths: tuple[int, ...] = ()
    """Lengths of the episodes that have ended, in steps."""
    returns: float = 0.0
    """Sum of the returns of these episodes."""
    truncated: bool = False
    """Whether any of them was truncated."""
    taken: int = 0

    def __post_init__(self) -> None:
        self._until = time.monotonic() + self.seconds

    @property
    def reached(self) -> bool:
        """Return whether the check is to end."""
        return len(self.lengths) >= self.episodes or self.taken >= self.steps or time.monotonic() > self._until

    def add(self, length: int, total: float, truncated: bool) -> None:
        """Add an episode that has ended, with its return `total`."""
        self.lengths += (length,)
        self.returns += total
        self.truncated |= truncated

    def report(self, findings: Findings, where: str) -> None:
        """Add findings about the lengths of the episodes."""
        if not self.lengths:
            findings.warning(
                "endless",
                f"{where}no episode ended in {self.taken:,} steps: there will be no returns to report; truncate"
                " episodes, as by max_episode_steps of gymnasium.register, or check with more --steps",
            )
        elif self.lengths[0] >= _LONG and set(self.lengths[1:]) == {1}:
            findings.warning(
                "begins",
                f"{where}the first episode had {self.lengths[0]:,} steps, and each later one ended in its first step:"
                " let reset() set back everything that ends an episode",
            )
        elif not self.truncated and (longest := max(self.lengths)) >= _LONG:
            count, played = self.lengths.count(longest), len(self.lengths)
            if count >= max(_SEVERAL, played / 2):
                findings.warning(
                    "time",
                    f"{where}{count} of {played} episodes terminated after {longest:,} steps, and none later: if that"
                    " is a limit of time, return terminated=False and truncated=True at it",
                )
