"""How the flat vector of a soak is laid out: a network's parameters, and counters in every shard's range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]


class Layout:
    """`shards` segments of equal length, so that each is one shard's range: counters, a part of the network, a total.

    The counters are one for each worker that there ever was (`slots`), each raised by exactly 1 with every update of
    that worker that the shard applies; the total is raised by 1 with every update. They are the first and the last
    elements of the range, and float32 counts exactly up to 2^24.
    """

    def __init__(self, network: int, shards: int, slots: int) -> None:
        self.network = network
        self.shards = shards
        self.slots = slots
        self._part = -(-network // shards)
        self.size = shards * (slots + self._part + 1)

    def spread(self, network: Vector) -> Vector:
        """The whole vector, float32 [size], with counters at zero."""
        vector = np.zeros((self.shards, self.size // self.shards), np.float32)
        padded = np.zeros(self.shards * self._part, np.float32)
        padded[: self.network] = network
        vector[:, self.slots : -1] = padded.reshape(self.shards, self._part)
        return vector.reshape(-1)

    def gather(self, vector: Vector) -> Vector:
        """The network's parameters, float32 [network]: a copy that cannot be written to."""
        network = self._rows(vector)[:, self.slots : -1].reshape(-1)[: self.network]
        network.flags.writeable = False
        return network

    def counts(self, vector: Vector) -> Any:
        """The counters [shards, slots]: a view."""
        return self._rows(vector)[:, : self.slots]

    def totals(self, vector: Vector) -> Any:
        """The totals [shards]: a view."""
        return self._rows(vector)[:, -1]

    def mark(self, vector: Vector, slot: int) -> None:
        """Make an update of `slot` raise what it has to raise."""
        self.counts(vector)[:, slot] = 1
        self.totals(vector)[:] = 1

    def _rows(self, vector: Vector) -> Any:
        return vector.reshape(self.shards, -1)
