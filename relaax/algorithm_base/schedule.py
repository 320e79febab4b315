"""Learning rates by global step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning rate that falls linearly from `initial` at step 0 to zero at `end`, or stays if `end` is None."""

    initial: float
    end: int | None = None

    def __call__(self, global_step: int) -> float:
        """Return the learning rate at `global_step`; never negative."""
        if self.end is None:
            return self.initial
        return self.initial * max(0.0, 1.0 - global_step / self.end)
