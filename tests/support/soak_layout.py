"""Layout of the flat vector of a soak: the parameters of a network, and counters in every shard's range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


class Layout:
    """A layout of `shards` segments of equal length, one for each shard: counters, a part of the network, a total.

    Each of the `slots` counters belongs to one worker. When the shard applies an update, it adds exactly 1 to the
    counter of its worker, and 1 to the total. The counters are the first elements of the range, and the total is the
    last. float32 counts exactly up to 2^24.
    """

    def __init__(self, network: int, shards: int, slots: int) -> None:
        self.network = network
        self.shards = shards
        self.slots = slots
        self._part = -(-network // shards)
        self.size = shards * (slots + self._part + 1)

    def spread(self, network: Vector) -> Vector:
        """Return the whole vector, float32 [size], with counters at zero."""
        vector = np.zeros((self.shards, self.size // self.shards), np.float32)
        padded = np.zeros(self.shards * self._part, np.float32)
        padded[: self.network] = network
        vector[:, self.slots : -1] = padded.reshape(self.shards, self._part)
        return vector.reshape(-1)

    def gather(self, vector: Vector) -> Vector:
        """Return a read-only copy of the network's parameters, float32 [network]."""
        network = self._rows(vector)[:, self.slots : -1].reshape(-1)[: self.network]
        network.flags.writeable = False
        return network

    def counts(self, vector: Vector) -> Any:
        """Return a view of the counters, [shards, slots]."""
        return self._rows(vector)[:, : self.slots]

    def totals(self, vector: Vector) -> Any:
        """Return a view of the totals, [shards]."""
        return self._rows(vector)[:, -1]

    def mark(self, vector: Vector, slot: int) -> None:
        """Make an update add 1 to the counter of `slot` and to the total of every shard."""
        self.counts(vector)[:, slot] = 1
        self.totals(vector)[:] = 1

    def _rows(self, vector: Vector) -> Any:
        return vector.reshape(self.shards, -1)
