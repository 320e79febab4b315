"""What a workload gets of machines that there are, and what machines it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from relaax.planning.costs import ASKING_US, GRPC, SHARED, Costs, crowding, thronged, woken_us
from relaax.planning.demand import (
    RLX_SERVER_MB,
    SERVER_MB,
    Demand,
    checkpoint_bytes,
    demand,
    learner_mb,
    shard_mb,
    worker_mb,
)
from relaax.planning.queueing import Circle, Pool, Turning, turn
from relaax.planning.workload import GIGABYTE, MEGABYTE, MachineSize, Workload

FULL = 0.7
"""Share of cores and network up to which machines are filled: beyond, waiting grows faster than work."""
FULL_MEMORY = 0.8
BURSTS = 2.0
"""Of a message: its client and its worker are woken."""
SLEEP_STEPS = 20
MOST_SHARDS = 64
CORES = "cores"
MOST_CONNECTIONS = 16_384
"""Of a parameter server (docs/limits.md)."""
COPY_BYTES, WRITE_BYTES = 8e9, 160e6
"""Per second: a snapshot in memory, and a checkpoint to a disk (docs/results/parameter-server.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartForecast:
    """One kind of process. `cores`, `gigabytes`, `in_gigabits` and `out_gigabits`: of all of them together."""

    name: str
    processes: int
    machines: int | None
    """None: on machines that other parts have."""
    cores: float
    gigabytes: float
    process_mb: float
    in_gigabits: float
    out_gigabits: float
    used: float
    """The share of what the part can do: 1 is all."""
    grows: bool
    """Whether more of it help: shards that are configured do not grow by themselves."""
    breaks_at: int
    """Environments at which it is used up."""
    because: str
    """What is used up first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is to be expected. Milliseconds and seconds where a name says so."""

    steps_per_second: float
    wanted_steps_per_second: float
    connections: int
    act_p50_ms: float
    act_p99_ms: float
    pushes_per_second: float
    push_bytes_per_second: float
    staleness: float
    rlx_servers: int
    parts: tuple[PartForecast, ...]
    bottleneck: str
    pool_breaks_at: int | None
    """Environments at which the cores of machines that all parts share are used up; None if each has its own."""
    checkpoint_mb: float
    checkpoint_seconds: float
    hold_ms: float
    machines: int
    bridge: str

    @property
    def enough(self) -> bool:
        """Return whether the environments get the rate that was asked for."""
        return self.steps_per_second >= 0.98 * self.wanted_steps_per_second


def wanted(workload: Workload, costs: Costs, delay_us: float) -> float:
    """Return steps per second of all environments: at their rate, or as fast as they go while nobody waits."""
    if workload.rate is not None:
        return workload.environments * workload.rate
    alone = costs.client.us(workload.per_connection) + costs.act_share * costs.worker.us(workload.per_connection)
    return 1e6 * workload.environments / (alone + delay_us)


def on_machines(workload: Workload, costs: Costs, size: MachineSize, machines: int, bridge: str = "auto") -> Forecast:
    """Return what so many machines do, each with its share of everything.

    Processes that are held to a rate sleep for the share of time that the processors idle, which is what their messages
    then cost: solved by bisection.
    """
    low, high = 0.0, 0.0 if workload.rate is None else 1.0
    for _ in range(SLEEP_STEPS):
        middle = (low + high) / 2
        idle = 1.0 - _together(workload, costs, size, machines, bridge, middle)[1]
        low, high = (middle, high) if idle > middle else (low, middle)
    return _together(workload, costs, size, machines, bridge, low)[0]


def _together(
    workload: Workload, costs: Costs, size: MachineSize, machines: int, bridge: str, sleeps: float
) -> tuple[Forecast, float]:
    """Return the forecast, and the share of all cores that is used."""
    way = SHARED if machines == 1 and bridge != GRPC else GRPC
    processes = 2.0 * workload.connections / machines
    crowded = crowding(processes, size.cores)
    asked = demand(workload, costs, way, crowded, crowded, crowded, sleeps)
    asked = asked.costing(thronged(processes, size.cores, 1.0 - sleeps))
    every = asked.client + asked.worker + asked.pushes * asked.exchange_shard * workload.shards
    pool = Pool(size.cores, machines, every + asked.learner + asked.replay, BURSTS + asked.pushes)
    delay = woken_us(costs, sleeps) + 1e3 * size.round_trip_ms
    exchange_delay = 1e3 * size.round_trip_ms if way == GRPC else 0.0
    turning = _turn(workload, costs, asked, (pool, pool), delay, exchange_delay)
    steps = wanted(workload, costs, delay)
    parts = _parts(workload, costs, asked, turning, size, None, steps)
    found = _forecast(workload, asked, turning, size, parts, machines, way, steps, pool)
    return found, turning.messages / pool.most


def forecast(
    workload: Workload, costs: Costs, size: MachineSize, machines: int | None, bridge: str = "auto"
) -> Forecast:
    """Return what so many machines do, or which are needed if that is not said."""
    if machines is None:
        return needed(workload, costs, size, bridge)
    return on_machines(workload, costs, size, machines, bridge)


def needed(workload: Workload, costs: Costs, size: MachineSize, bridge: str = "auto") -> Forecast:
    """Return which machines are needed, a kind for each part, filled up to `FULL`; or one for all, if it is enough."""
    single = on_machines(workload, costs, replace(size, round_trip_ms=0.0), 1, bridge)
    cores, memory = (sum(getattr(part, name) for part in single.parts) for name in ("cores", "gigabytes"))
    if single.enough and cores <= FULL * size.cores and memory <= FULL_MEMORY * size.gigabytes:
        return single
    delay = costs.wake_us + 1e3 * size.round_trip_ms
    messages = wanted(workload, costs, delay) / workload.per_connection
    asked = demand(workload, costs, GRPC, 1.0, 1.0, 0.0, 0.0 if workload.rate is None else 1.0 - FULL)
    half, memory = asked.wire_bytes / 2, workload.connections * MEGABYTE
    count = _machines(messages * asked.client, memory * costs.client_mb, messages * half, size)
    environments = Pool(size.cores, count, asked.client)
    traffic = messages * (half + max(asked.worker_out_bytes, asked.worker_in_bytes))
    count = _machines(messages * asked.worker, memory * worker_mb(workload, costs), traffic, size)
    workers = Pool(size.cores, count, asked.worker)
    turning = _turn(workload, costs, asked, (environments, workers), delay, 1e3 * size.round_trip_ms)
    counts = {"environments": environments.copies, "workers": workers.copies}
    steps = wanted(workload, costs, delay)
    parts = _parts(workload, costs, asked, turning, size, counts, steps)
    machines = sum(part.machines or 0 for part in parts)
    return _forecast(workload, asked, turning, size, parts, machines, GRPC, steps, None)


def _machines(us_per_second: float, memory: float, bytes_per_second: float, size: MachineSize) -> int:
    """Return how many machines have so many cores' time, bytes of memory, and of the network each way."""
    by_cores = us_per_second / 1e6 / (FULL * size.cores)
    by_memory = memory / (FULL_MEMORY * size.gigabytes * GIGABYTE)
    return max(1, *(math.ceil(n) for n in (by_cores, by_memory, bytes_per_second / (FULL * size.bytes_per_second))))


def _turn(
    workload: Workload, costs: Costs, asked: Demand, pools: tuple[Pool, Pool], delay: float, exchange_delay: float
) -> Turning:
    """Return how the circle turns. `pools`: of environments and of workers."""
    learn = asked.learn + asked.exchange_worker
    if workload.workers_push:
        learn = learn + asked.exchange_shard + exchange_delay
    circle = Circle(
        connections=workload.connections,
        client=asked.client,
        act=asked.act,
        learn=learn,
        delay=delay,
        asking=ASKING_US,
        rollout=workload.rollout,
        overlap=workload.overlap,
        period=0.0 if workload.rate is None else 1e6 / workload.rate,
        environments=pools[0],
        workers=pools[1],
        limit=min(_limits(workload, asked, None).values()),
    )
    return turn(circle)


def _limits(workload: Workload, asked: Demand, size: MachineSize | None) -> dict[str, float]:
    """Return the messages per second at which each part that all share is used up.

    A shard applies one update at a time; learners and replay shards have a core each. With `size`, a shard's network is
    looked at, too, as if each were on a machine of its own.
    """
    limits = {"parameter server": 1e6 / (asked.pushes * asked.exchange_shard)}
    if workload.learners and workload.replay is not None and workload.replay.samples_per_insert is not None:
        limits["learners"] = workload.learners * 1e6 / asked.learner if asked.learner else math.inf
    if workload.replay is not None:
        limits["replay servers"] = workload.replay.shards * 1e6 / asked.replay if asked.replay else math.inf
    if size is not None:
        most = max(asked.push_bytes, asked.pull_bytes) / workload.shards
        limits["parameter server's network"] = size.bytes_per_second / most
        if workload.replay is not None:
            most = max(asked.replay_in_bytes, asked.replay_out_bytes) / workload.replay.shards
            limits["replay servers' network"] = size.bytes_per_second / most
    return limits


def _parts(
    workload: Workload,
    costs: Costs,
    asked: Demand,
    turning: Turning,
    size: MachineSize,
    counts: dict[str, int] | None,
    steps: float,
) -> tuple[PartForecast, ...]:
    """Return every part at the speed that is reached.

    `counts`: machines of those that grow; None: all share some. `steps`: steps per second that would be, if all were
    answered at once.
    """
    x, apart = turning.messages, counts is not None
    counts = counts or {}
    limits = _limits(workload, asked, size if apart else None)

    def part(
        name: str, processes: int, us: float, mb: float, inward: float, outward: float, extra: float = 0.0
    ) -> PartForecast:
        cores, memory = x * us / 1e6, (processes * mb + extra) * MEGABYTE
        own = {kind: limit for kind, limit in limits.items() if kind.startswith(name)}
        because = min(own, key=lambda kind: own[kind]) if own else CORES
        machines = None
        if apart:
            machines = counts.get(name) or _machines(x * us, memory, x * max(inward, outward), size)
        used = x / own[because] if own else cores / (size.cores * (machines or 1))
        asks = used * steps / workload.per_connection / x  # what it would be used if all had their rate
        return PartForecast(
            name=name,
            processes=processes,
            machines=machines,
            cores=cores,
            gigabytes=memory / GIGABYTE,
            process_mb=mb,
            in_gigabits=8e-9 * x * inward,
            out_gigabits=8e-9 * x * outward,
            used=used,
            grows=not own,
            breaks_at=int(workload.environments / asks) if asks > 0 else 2**53,
            because=because,
        )

    shards, replay = workload.shards, workload.replay
    half, push, pull = asked.wire_bytes / 2, asked.push_bytes, asked.pull_bytes
    fetched, pushed = half + asked.worker_in_bytes, half + asked.worker_out_bytes
    servers = max(math.ceil(workload.connections / workload.max_workers), counts.get("workers", 1))
    each, extra = worker_mb(workload, costs), servers * RLX_SERVER_MB
    shard = asked.pushes * asked.exchange_shard * shards
    found = [
        part("environments", workload.connections, asked.client, costs.client_mb, half, half),
        part("workers", workload.connections, asked.worker, each, fetched, pushed, extra),
        part("parameter server", shards, shard, shard_mb(workload, shards), push, pull),
    ]
    known = MOST_CONNECTIONS * workload.per_connection
    if known < found[-1].breaks_at:
        found[-1] = replace(found[-1], breaks_at=known, because="parameter server's connections")
    if replay is not None:
        table = SERVER_MB + replay.table_bytes / MEGABYTE
        into, out = asked.replay_in_bytes, asked.replay_out_bytes
        found.append(part("replay servers", replay.shards, asked.replay, table, into, out))
    if workload.learners:
        out, push = asked.replay_out_bytes + asked.learner_in_bytes, asked.learner_out_bytes
        found.append(part("learners", workload.learners, asked.learner, learner_mb(workload), out, push))
    return tuple(found)


def _forecast(
    workload: Workload,
    asked: Demand,
    turning: Turning,
    size: MachineSize,
    parts: tuple[PartForecast, ...],
    machines: int,
    bridge: str,
    steps: float,
    pool: Pool | None,
) -> Forecast:
    """Return the forecast. `steps`: steps per second that would be, if all were answered at once."""
    first = max((part for part in parts if not part.grows), key=lambda part: part.used)
    bottleneck, pool_breaks_at = first.because, None
    if pool is not None:
        pool_breaks_at = int(workload.environments * pool.most * workload.per_connection / steps)
        if turning.messages / pool.most > first.used:
            bottleneck = CORES
    workers = next(part.machines for part in parts if part.name == "workers") or 1
    written = checkpoint_bytes(workload)
    return Forecast(
        steps_per_second=turning.messages * workload.per_connection,
        wanted_steps_per_second=steps,
        connections=workload.connections,
        act_p50_ms=turning.quantile(0.5) / 1e3,
        act_p99_ms=turning.quantile(0.99) / 1e3,
        pushes_per_second=turning.messages * asked.updates,
        push_bytes_per_second=turning.messages * asked.push_bytes,
        staleness=staleness(workload),
        # One on each machine of workers, with as many workers as allowed.
        rlx_servers=max(math.ceil(workload.connections / workload.max_workers), workers),
        parts=parts,
        bottleneck=bottleneck,
        pool_breaks_at=pool_breaks_at,
        checkpoint_mb=written / MEGABYTE,
        checkpoint_seconds=written / WRITE_BYTES / workload.shards,
        hold_ms=1e3 * written / workload.shards / COPY_BYTES + 2 * size.round_trip_ms * (workload.shards > 1),
        machines=machines,
        bridge=bridge,
    )


def staleness(workload: Workload) -> float:
    """Return how many updates of others come between a fetch and the push of a gradient, on average.

    Between two pushes of one writer each of the M - 1 others pushes once: M - 1. A fetch after every s-th push alone
    makes it (M - 1) (s + 1) / 2 + (s - 1) / 2, its own among them.
    """
    writers, s = workload.writers, workload.sync_interval
    return (writers - 1) * (s + 1) / 2 + (s - 1) / 2


def shards_needed(workload: Workload, costs: Costs, size: MachineSize, messages: float) -> int | None:
    """Return how many shards use no more than `FULL` of a core and of a network each; None if none are enough."""
    for shards in range(1, MOST_SHARDS + 1):
        spread = replace(workload, shards=shards)
        asked = demand(spread, costs, GRPC, 1.0, 1.0, 0.0)
        limits = _limits(spread, asked, size)
        if all(messages <= FULL * limit for kind, limit in limits.items() if kind.startswith("parameter server")):
            return shards
    return None
