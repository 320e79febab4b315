"""What one message of a connection asks of every part: microseconds, bytes, pushes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from relaax.planning.costs import SERVER_SHARE, Costs, exchange_us
from relaax.planning.workload import MEGABYTE, Workload

REQUEST_BYTES = 200.0
"""Of a push or an answer beside its vectors: numbers, metrics, HTTP/2."""
MESSAGE_BYTES = 165.0
"""Of a step and its answer beside the numbers, headers of Ethernet and TCP included: 200 for CartPole, as devices of
network namespaces count them (docs/scaling.md)."""
ASKS = 0.5
"""Of an exchange, what it costs without a gradient."""
FREE_SAMPLES = 0.8
"""How often an item is drawn if nobody waits (Horgan et al. 2018)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Microseconds of a core, and bytes, for a message, which has a step of each environment of its connection."""

    client: float
    act: float
    learn: float
    """Of a rollout, beside the exchange."""
    exchange_worker: float
    exchange_shard: float
    """Of one push, on each shard."""
    learner: float
    replay: float
    """On all replay shards together."""
    pushes: float
    """Of workers and learners, to all shards."""
    updates: float
    """Those of them that have a gradient."""
    wire_bytes: float
    """Between client and worker, both ways."""
    worker_out_bytes: float
    """Gradients of workers, to all shards together; the next: parameters that they fetch."""
    worker_in_bytes: float
    learner_out_bytes: float
    learner_in_bytes: float
    replay_in_bytes: float
    replay_out_bytes: float
    rollout: int

    @property
    def push_bytes(self) -> float:
        """Return what all shards together are sent."""
        return self.worker_out_bytes + self.learner_out_bytes

    @property
    def pull_bytes(self) -> float:
        """Return what all shards together send."""
        return self.worker_in_bytes + self.learner_in_bytes

    @property
    def worker(self) -> float:
        """Return a worker's whole cost of a message."""
        return self.act + (self.learn + self.exchange_worker) / self.rollout

    def costing(self, factor: float) -> Demand:
        """Return the same where all processor time is so many times as long."""
        times = ("client", "act", "learn", "exchange_worker", "exchange_shard", "learner", "replay")
        return replace(self, **{name: factor * getattr(self, name) for name in times})


def demand(
    workload: Workload,
    costs: Costs,
    bridge: str,
    at_client: float,
    at_worker: float,
    at_shard: float,
    sleeps: float = 0.0,
) -> Demand:
    """Return what a message asks for.

    `at_client`, `at_worker`, `at_shard`: how crowded the processors of each are (`crowding`), 0 to 1. `sleeps`: the
    share of time, 0 to 1, for which processors idle, as processes are held to a rate: who is woken then finds caches as
    others left them, and costs up to `Costs.paced` times as much.
    """
    at_client, at_worker = max(at_client, sleeps), max(at_worker, sleeps)
    woken = 1.0 + sleeps * (costs.paced - 1.0)
    shards = workload.shards
    n, replay = workload.per_connection, workload.replay
    message = woken * costs.worker.us(n, at_worker)
    act = costs.act_share * message
    inserted = n if replay is not None else 0
    sampled = 0.0 if replay is None else inserted * (replay.samples_per_insert or FREE_SAMPLES)
    updates = 1.0 / workload.rollout
    if not workload.workers_push:
        assert replay is not None
        updates = sampled / replay.batch
    pushes = updates if workload.workers_push else updates + 1.0 / workload.rollout
    share = 0.5 * (1.0 + 1.0 / workload.sync_interval)
    warmth = {place: 1.0 + place * (costs.exchange_cold - 1.0) for place in (at_worker, at_shard)}
    fetched = workload.push_bytes / workload.sync_interval
    own, learners = 1.0 / workload.rollout, 0.0 if workload.workers_push else updates
    one = woken * costs.exchange_scale * exchange_us(share * workload.parameters / shards, bridge)
    return Demand(
        client=woken * costs.client.us(n, at_client),
        act=act,
        learn=(message - act) * workload.rollout,
        exchange_worker=warmth[at_worker]
        * (1.0 - SERVER_SHARE)
        * one
        * shards
        * (1.0 if workload.workers_push else ASKS),
        exchange_shard=warmth[at_shard] * SERVER_SHARE * one,
        learner=updates * (costs.learner_us + replay.batch * costs.learner_us_per_item) if replay is not None else 0.0,
        replay=_replay_us(workload, costs, inserted, sampled),
        pushes=pushes,
        updates=updates,
        wire_bytes=MESSAGE_BYTES + n * workload.observation_bytes,
        worker_out_bytes=own * (workload.push_bytes * workload.workers_push + REQUEST_BYTES * shards),
        worker_in_bytes=own * (fetched + REQUEST_BYTES * shards),
        learner_out_bytes=learners * (workload.push_bytes + REQUEST_BYTES * shards),
        learner_in_bytes=learners * (fetched + REQUEST_BYTES * shards),
        replay_in_bytes=0.0 if replay is None else inserted * replay.insert_bytes,
        replay_out_bytes=0.0 if replay is None else sampled * replay.sample_bytes,
        rollout=workload.rollout,
    )


def _replay_us(workload: Workload, costs: Costs, inserted: float, sampled: float) -> float:
    if workload.replay is None:
        return 0.0
    insert = costs.insert_us + costs.insert_us_per_byte * workload.replay.insert_bytes
    sample = costs.sample_us + costs.sample_us_per_byte * workload.replay.sample_bytes
    return inserted * insert + sampled * sample


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
