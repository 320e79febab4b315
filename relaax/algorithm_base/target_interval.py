"""How often a target network is renewed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TargetInterval:
    """After how many environment frames, or how many updates, the target network becomes a copy of the parameters.

    Exactly one of the two is given, an int from 1 on. Frames are environment steps x frame skip, over all workers.
    Raises ValueError otherwise.
    """

    frames: int | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        given = [count for count in (self.frames, self.updates) if count is not None]
        if len(given) != 1:
            raise ValueError(
                f"a target network is renewed after frames or after updates, not {'both' if given else 'neither'}"
            )
        if type(given[0]) is not int or given[0] < 1:
            raise ValueError(f"a target network is renewed after {given[0]!r} {self.unit}; an int from 1 on is needed")

    @property
    def length(self) -> int:
        """The number of frames or updates."""
        return self.frames or self.updates or 1

    @property
    def unit(self) -> str:
        """What is counted: "frames" or "updates"."""
        return "updates" if self.frames is None else "frames"

    def counted(self, frames: int, updates: int) -> int:
        """Return that one of the two counts by which the target network is renewed."""
        return updates if self.frames is None else frames
