"""The counters of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a shard. `version` is the number of updates applied; the others are sums over pushes."""

    version: int = 0
    env_steps: int = 0
    frames: int = 0
    discarded_stale: int = 0
    discarded_not_finite: int = 0
    discarded_loss: int = 0

    @classmethod
    def from_json(cls, counted: Mapping[str, int]) -> Counters:
        """Read the counters of a checkpoint; older ones lack some. Raises ValueError if it has others."""
        counted = {name: count for name, count in counted.items() if name != "pending"}  # of averaged gradients, once
        unknown = sorted(set(counted) - {field.name for field in fields(cls)})
        if unknown:
            raise ValueError(f"this version does not know what it counts as {', '.join(unknown)}")
        return cls(**counted)

    @property
    def discarded(self) -> int:
        """Gradients discarded for any reason."""
        return sum(self.discarded_for.values())

    @property
    def discarded_for(self) -> dict[str, int]:
        """Gradients discarded, by reason."""
        return {
            "stale": self.discarded_stale,
            "not_finite": self.discarded_not_finite,
            "loss": self.discarded_loss,
        }
