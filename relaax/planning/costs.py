"""What the parts cost: processor time by message, by environment, by parameter and by item; memory.

The constants come from docs/results of the repository, two cores of a virtual machine, and each says from where. A
benchmark's file replaces what it has measured (`relaax.planning.calibration`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SHARED_US, SHARED_US_PER_PARAMETER = 134.0, 1.28e-3
"""Processor time of a push and pull through memory, both sides together: 1.0 ms for 677,747 parameters, 0.14 ms for
4,611 (docs/results/parameter-server.md)."""
GRPC_US, GRPC_US_PER_PARAMETER = 616.0, 7.35e-3
"""The same by gRPC: 5.6 ms and 0.65 ms."""
BEYOND_CACHES, BEYOND_FACTOR = 5_000_000, 3.3
"""Parameters of a message from which each costs so many times as much by gRPC: 23 to 28 ns instead of 8
(docs/results/growth.md)."""
SERVER_SHARE = 0.6
"""Of an exchange, the parameter server's; the rest is the worker's (docs/results/parameter-server.md, second table)."""
SHARED, GRPC = "shared_memory", "grpc"


@dataclass(frozen=True, slots=True)
class MessageCost:
    """Processor time of one message: `fixed + each * environments`, times `cold` where others have had the caches."""

    fixed: float
    each: float
    cold: float = 1.0

    def us(self, environments: int, crowding: float = 0.0) -> float:
        """Return microseconds. `crowding`: 0, caches are warm, to 1, they are others' (`crowding`)."""
        return (self.fixed + self.each * environments) * (1.0 + crowding * (self.cold - 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """All costs, and where they come from."""

    sources: tuple[str, ...]
    client: MessageCost
    """An environment's program: environment and client."""
    worker: MessageCost
    """A worker: wire, acting and learning, the exchange with the parameter server left out."""
    act_share: float
    """Of `worker`, what is done before the actions are on their way; the rest is learning."""
    wake_us: float
    """Of an action's time, what is nobody's processor time: two processes are woken."""
    exchange_scale: float = 1.0
    """How many times as much an exchange costs as `exchange_us` says."""
    exchange_cold: float = 1.0
    paced: float = 1.0
    """How many times as much a message costs on processors that idle, as its processes are held to a rate."""
    paced_wake_us: float | None = None
    """`wake_us` on processors that idle; None: the same."""
    asking_us: float = 0.0
    """Of an action's time, the client's own."""
    learner_us: float = 0.0
    learner_us_per_item: float = 0.0
    """Of an update, a learner's, and of each transition in its batch."""
    insert_us: float = 8.0
    insert_us_per_byte: float = 2.4e-3
    sample_us: float = 5.0
    sample_us_per_byte: float = 2.2e-3
    """Of an item, a replay server's, by gRPC (docs/results/replay-service.csv)."""
    client_mb: float = 40.0
    worker_mb: float | None = None
    """Of a worker, not shared; None: by `relaax.planning.memory`."""


def woken_us(costs: Costs, sleeps: float) -> float:
    """Return what waking two processes takes, on processors that idle for a share of time `sleeps`, 0 to 1."""
    idle = costs.wake_us if costs.paced_wake_us is None else costs.paced_wake_us
    return costs.wake_us + sleeps * (idle - costs.wake_us)


def exchange_us(parameters: float, bridge: str, pushes: float = 1.0) -> float:
    """Return what `pushes` exchanges of so many parameters each cost both sides together.

    c = c0 + c1 * P; by gRPC c1 is `BEYOND_FACTOR` times as much for those beyond `BEYOND_CACHES`.
    """
    if bridge == GRPC:
        beyond = max(0.0, parameters - BEYOND_CACHES) * (BEYOND_FACTOR - 1.0)
        return pushes * (GRPC_US + GRPC_US_PER_PARAMETER * (parameters + beyond))
    return pushes * (SHARED_US + SHARED_US_PER_PARAMETER * parameters)


WARM_PROCESSES, COLD_PROCESSES = 2.0, 8.0


THRONG = 0.2


def thronged(processes: float, cores: float, busy: float) -> float:
    """Return how many times as much everything costs with so many processes per core that are `busy`, 0 to 1.

    Each doubling beyond `COLD_PROCESSES` adds a fifth: fitted to the table of docs/scaling.md, where a free step of
    CartPole takes 0.39 ms with 4 connections on two cores, 0.6 with 64 and 0.7 with 128.
    """
    return 1.0 + THRONG * busy * math.log2(max(1.0, processes / cores / COLD_PROCESSES))


def crowding(processes: float, cores: float) -> float:
    """Return from 0 to 1 how far the caches are others': by processes per core, of which 2 do not disturb and 8 do.

    docs/results/growth.md: a step of CartPole takes 0.25 to 0.37 ms of two cores with 2 connections (4 processes), 0.78
    with 8 (16), and no more with 64.
    """
    share = (processes / cores - WARM_PROCESSES) / (COLD_PROCESSES - WARM_PROCESSES)
    return min(1.0, max(0.0, share))
