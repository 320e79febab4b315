"""Load that one message of a connection puts on every part: microseconds, bytes and pushes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from relaax.planning.costs import SERVER_SHARE, Costs, exchange_us
from relaax.planning.workload import MEGABYTE, Workload

REQUEST_BYTES = 200.0
"""Size of a push or a response without its vectors: numbers, metrics, HTTP/2."""
MESSAGE_BYTES = 165.0
"""Size of a step and its response with Ethernet and TCP headers, but without observations, actions and rewards. With
these, CartPole has 200, counted at the devices of network namespaces (docs/scaling.md)."""
SHARE_WITHOUT_GRADIENT = 0.5
"""Cost of an exchange without a gradient, as a share of one with a gradient."""
FREE_SAMPLES = 0.8
"""How often an item is sampled if learners are not throttled (Horgan et al. 2018)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Load of one message, in microseconds of a core and in bytes.

    A message has a step of each environment of its connection.
    """

    client: float
    act: float
    learn: float
    """Per rollout, without the exchange."""
    exchange_worker: float
    exchange_shard: float
    """Per push, on each shard."""
    learner: float
    replay: float
    """On all replay shards together."""
    pushes: float
    """Pushes by workers and learners. Each goes to all shards."""
    updates: float
    """Pushes that have a gradient."""
    wire_bytes: float
    """Between client and worker, both ways."""
    worker_out_bytes: float
    """Gradients of workers, to all shards together."""
    worker_in_bytes: float
    """Parameters that workers fetch, from all shards together."""
    learner_out_bytes: float
    learner_in_bytes: float
    replay_in_bytes: float
    replay_out_bytes: float
    rollout: int

    @property
    def push_bytes(self) -> float:
        """Return the bytes that all shards together receive."""
        return self.worker_out_bytes + self.learner_out_bytes

    @property
    def pull_bytes(self) -> float:
        """Return the bytes that all shards together send."""
        return self.worker_in_bytes + self.learner_in_bytes

    @property
    def worker(self) -> float:
        """Return a worker's whole cost of a message."""
        return self.act + (self.learn + self.exchange_worker) / self.rollout

    def scaled(self, factor: float) -> Demand:
        """Return the load with all processor times multiplied by `factor`."""
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
    """Return the load of a message.

    `at_client`, `at_worker`, `at_shard`: the crowding of the processors of each, 0 to 1 (`costs.crowding`). `sleeps`:
    the share of time, 0 to 1, in which processors idle because processes have a fixed rate. A process that wakes up
    then finds cold caches, and its work costs up to `Costs.paced` times as much.
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
    own, learners, exchange_factor = 1.0 / workload.rollout, 0.0, 1.0
    if not workload.workers_push:
        learners, exchange_factor = updates, SHARE_WITHOUT_GRADIENT
    one = woken * costs.exchange_scale * exchange_us(share * workload.parameters / shards, bridge)
    return Demand(
        client=woken * costs.client.us(n, at_client),
        act=act,
        learn=(message - act) * workload.rollout,
        exchange_worker=warmth[at_worker] * (1.0 - SERVER_SHARE) * one * shards * exchange_factor,
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
"""Memory of an RLX server that its workers share (docs/tune.md)."""
SERVER_MB = 150.0
WORKER_MB = 13.0
"""Memory of a worker without its network. With the network of CartPole: 14.5 MB (relaax docs results/speed)."""
VECTORS_OF_A_WORKER = 4
"""Parameters, gradient, and temporary vectors: 35.5 MB with Atari's 677,747 numbers and 8 environments."""
SNAPSHOTS = 2
CONCURRENT_CALLS = 80
"""Calls that a parameter server serves at the same time. Each has a request and a response (docs/limits.md)."""
LEARNER_MB = 150.0
VECTORS_OF_A_LEARNER = 8


def worker_mb(workload: Workload, costs: Costs) -> float:
    """Return a worker's unshared megabytes: as measured, or its vectors and two rollouts of stacked observations."""
    if costs.worker_mb is not None:
        return costs.worker_mb
    vectors = VECTORS_OF_A_WORKER * 4 * workload.parameters
    rollout = 2 * workload.per_connection * (min(workload.rollout, 100) + 1) * 4 * workload.observation_bytes
    return WORKER_MB + (vectors + rollout) / MEGABYTE


def shard_mb(workload: Workload, shards: int) -> float:
    """Return a shard's megabytes: its part of all vectors, their snapshots, a checkpoint's copy, and messages.

    The vectors take 4 P/K (2 (1 + slots) + target + snapshots) bytes. Each of up to 80 concurrent calls has two
    messages.
    """
    part = workload.parameters / shards
    vectors = 2 * (1 + workload.slots) + workload.target + SNAPSHOTS
    messages = 2 * workload.wire_bytes * part * min(CONCURRENT_CALLS, workload.writers)
    return SERVER_MB + (4 * part * vectors + messages) / MEGABYTE


def learner_mb(workload: Workload) -> float:
    """Return a learner's megabytes: its vectors, its batch, and two prefetched batches."""
    batch = 0.0 if workload.replay is None else 3 * workload.replay.batch * workload.replay.sample_bytes
    return LEARNER_MB + (VECTORS_OF_A_LEARNER * 4 * workload.parameters + batch) / MEGABYTE


def checkpoint_bytes(workload: Workload) -> float:
    """Return the bytes of a checkpoint: parameters, slots and target network, float32."""
    return 4.0 * workload.parameters * (1 + workload.slots + workload.target)
