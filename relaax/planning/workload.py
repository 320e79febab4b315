"""What is to be served, and on what."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEGABYTE = 1e6
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWorkload:
    """A replay memory. Bytes are those of one item as it is inserted and as it is sampled."""

    shards: int
    table_bytes: float
    """Of one shard, all tables."""
    insert_bytes: float
    sample_bytes: float
    batch: int
    samples_per_insert: float | None
    """None: learners draw as fast as they go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Environments, and what a configuration makes of them."""

    environments: int
    per_connection: int
    """Environments that a connection steps together."""
    rate: float | None
    """Steps per second of each environment; None: as fast as they go."""
    observation_bytes: float
    """A step of one environment on the wire, both ways, frames of TCP aside."""
    parameters: int
    multiplications: float
    """Of one example's way through the network."""
    rollout: int
    """Steps of a connection between two pushes, I_AsyncUpdate or t_max of the papers."""
    rollout_key: str = ""
    """The configuration's key for it; empty if there is none."""
    slots: int = 1
    """Vectors that the optimizer keeps beside the parameters."""
    target: bool = False
    """Whether there is a target network."""
    sync_interval: int = 1
    """Pushes between two fetches of parameters."""
    wire_bytes: int = 4
    """Of a parameter on the wire."""
    overlap: bool = True
    """Whether a worker learns while its environments step."""
    workers_push: bool = True
    """Whether workers push gradients; else they only say how far they are, and learners push."""
    shards: int = 1
    learners: int = 0
    replay: ReplayWorkload | None = None
    max_staleness: int | None = None
    max_workers: int = 256
    """Of an RLX server."""

    @property
    def connections(self) -> int:
        """Return how many connections there are: each is one worker."""
        return math.ceil(self.environments / self.per_connection)

    @property
    def writers(self) -> int:
        """Return how many processes push gradients: all workers, or else all learners."""
        return self.connections if self.workers_push else max(1, self.learners)

    @property
    def push_bytes(self) -> float:
        """Return what a push sends to all shards together, and what parameters come back with."""
        return float(self.wire_bytes * self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    """One machine. `gigabits`: of its network, each way; `round_trip_ms`: to another one."""

    cores: int
    gigabytes: float
    gigabits: float
    round_trip_ms: float

    @property
    def bytes_per_second(self) -> float:
        """Return what the network takes each way."""
        return self.gigabits * 1e9 / 8
