"""The position of a parameter server among the shards."""

from __future__ import annotations

from dataclasses import dataclass

from relaax.parameters.shard_client import shard_range


@dataclass(frozen=True, slots=True)
class ShardPosition:
    """Shard `index`, from 0, of `count`. Shard 0 leads: it counts steps, allots actors and publishes checkpoints."""

    index: int = 0
    count: int = 1

    @property
    def part(self) -> str:
        """The name of this shard's part in a checkpoint."""
        return f"shard-{self.index}"

    def range(self, parameters: int) -> tuple[int, int]:
        """Return the first element of a vector of `parameters` that it owns, and one past its last."""
        return shard_range(parameters, self.index, self.count)

    def __str__(self) -> str:
        return f"shard {self.index} of {self.count}"
