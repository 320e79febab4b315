"""Inputs of the model: the environments to serve, and the size of a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass

MEGABYTE = 1e6
GIGABYTE = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayWorkload:
    """Replay memory. `insert_bytes`, `sample_bytes`: of one item."""

    shards: int
    table_bytes: float
    """All tables of one shard."""
    insert_bytes: float
    sample_bytes: float
    batch: int
    samples_per_insert: float | None
    """None: learners sample as fast as they can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Environments, and the load that a configuration gives them."""

    environments: int
    per_connection: int
    """Environments that a connection steps together."""
    rate: float | None
    """Steps per second of each environment; None: as fast as possible."""
    observation_bytes: float
    """One environment's part of a step on the wire, both directions together, without TCP headers."""
    parameters: int
    multiplications: float
    """Multiplications of one forward pass for one example."""
    rollout: int
    """Steps of a connection between two pushes: I_AsyncUpdate or t_max of the papers."""
    rollout_key: str = ""
    """Configuration key of `rollout`; empty if there is none."""
    slots: int = 1
    """Vectors that the optimizer keeps in addition to the parameters."""
    target: bool = False
    """Whether there is a target network."""
    sync_interval: int = 1
    """Pushes between two fetches of parameters."""
    wire_bytes: int = 4
    """Bytes of a parameter on the wire."""
    overlap: bool = True
    """Whether a worker learns while its environments step."""
    workers_push: bool = True
    """Whether workers push gradients. If not, they only report their progress, and learners push."""
    shards: int = 1
    learners: int = 0
    replay: ReplayWorkload | None = None
    max_staleness: int | None = None
    max_workers: int = 256
    """Workers of one RLX server, at most."""

    @property
    def connections(self) -> int:
        """Return the number of connections. Each has one worker."""
        return math.ceil(self.environments / self.per_connection)

    @property
    def writers(self) -> int:
        """Return the number of processes that push gradients: all workers or all learners."""
        return self.connections if self.workers_push else max(1, self.learners)

    @property
    def push_bytes(self) -> float:
        """Return the bytes of one vector on the wire, to or from all shards together: a gradient, or parameters."""
        return float(self.wire_bytes * self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    """One machine. `gigabits`: of its network, each way. `round_trip_ms`: to another machine."""

    cores: int
    gigabytes: float
    gigabits: float
    round_trip_ms: float

    @property
    def bytes_per_second(self) -> float:
        """Return the network's bytes per second in each direction."""
        return self.gigabits * 1e9 / 8
