"""Memory of each kind of process, in megabytes of its own."""

from __future__ import annotations

from relaax.planning.costs import Costs
from relaax.planning.workload import MEGABYTE, Workload

RLX_SERVER_MB = 150.0
"""Of an RLX server, which its workers share (docs/operating.md)."""
SERVER_MB = 150.0
WORKER_MB = 13.0
"""Of a worker beside its network: 14.5 MB with CartPole's (docs/results/speed.md)."""
VECTORS_OF_A_WORKER = 4
"""Parameters, gradient, and what is made of them beside: 35.5 MB with Atari's 677,747 numbers and 8 environments."""
SNAPSHOTS = 2
ANSWERED = 80
"""Calls that a parameter server answers at a time: each has a message each way (docs/limits.md)."""
LEARNER_MB = 150.0
VECTORS_OF_A_LEARNER = 8


def worker_mb(workload: Workload, costs: Costs) -> float:
    """Return what a worker has of its own, measured or: its vectors, and a rollout of stacked observations twice."""
    if costs.worker_mb is not None:
        return costs.worker_mb
    vectors = VECTORS_OF_A_WORKER * 4 * workload.parameters
    rollout = 2 * workload.per_connection * (min(workload.rollout, 100) + 1) * 4 * workload.observation_bytes
    return WORKER_MB + (vectors + rollout) / MEGABYTE


def shard_mb(workload: Workload, shards: int) -> float:
    """Return a shard's: its part of parameters, slots and target, snapshots, a checkpoint's copy, and messages.

    4 P/K (2 (1 + slots) + target + snapshots), and two messages for each of up to 80 calls at a time.
    """
    part = workload.parameters / shards
    vectors = 2 * (1 + workload.slots) + workload.target + SNAPSHOTS
    writers = workload.connections if workload.workers_push else max(1, workload.learners)
    messages = 2 * workload.wire_bytes * part * min(ANSWERED, writers)
    return SERVER_MB + (4 * part * vectors + messages) / MEGABYTE


def learner_mb(workload: Workload) -> float:
    """Return a learner's: vectors, and two batches that are drawn ahead."""
    batch = 0.0 if workload.replay is None else 3 * workload.replay.batch * workload.replay.sample_bytes
    return LEARNER_MB + (VECTORS_OF_A_LEARNER * 4 * workload.parameters + batch) / MEGABYTE


def checkpoint_bytes(workload: Workload) -> float:
    """Return the bytes of a checkpoint: parameters, slots and target network, float32."""
    return 4.0 * workload.parameters * (1 + workload.slots + workload.target)
