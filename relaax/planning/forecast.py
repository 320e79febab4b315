"""Forecasts: the speed of a workload on given machines, and the machines that it needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from relaax.planning.costs import CLIENT_ACTION_US, GRPC, SHARED, Costs, crowding, process_slowdown, wake_time_us
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
from relaax.planning.queueing import ClosedNetwork, Pool, Solution, solve
from relaax.planning.workload import GIGABYTE, MEGABYTE, MachineSize, Workload

FULL = 0.7
"""Share of cores and network up to which machines are filled. Beyond it, waiting grows faster than work."""
FULL_MEMORY = 0.8
BURSTS = 2.0
"""Processes woken per message: client and worker."""
SLEEP_STEPS = 20
MOST_SHARDS = 64
CORES = "cores"
MOST_CONNECTIONS = 16_384
"""Connections of a parameter server (docs/limits.md)."""
COPY_BYTES, WRITE_BYTES = 8e9, 160e6
"""Bytes per second of a snapshot in memory, and of a checkpoint to a disk (relaax docs results/parameter-server)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartForecast:
    """Forecast of one kind of process. `cores`, `gigabytes`, `in_gigabits`, `out_gigabits`: for all processes."""

    name: str
    processes: int
    machines: int | None
    """None: the part shares the machines of other parts."""
    cores: float
    gigabytes: float
    process_mb: float
    in_gigabits: float
    out_gigabits: float
    used: float
    """Used share of the part's capacity, 0 to 1."""
    grows: bool
    """Whether the part grows with the environments. The number of shards is configured, so they do not grow."""
    breaks_at: int
    """Number of environments at which the part is used up."""
    because: str
    """Resource that is used up first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Expected speed, latency and load of a workload. Units are in the names."""

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
    """Number of environments at which the cores are used up, if all parts share machines; None if each has its own."""
    checkpoint_mb: float
    checkpoint_seconds: float
    hold_ms: float
    machines: int
    bridge: str

    @property
    def enough(self) -> bool:
        """Return whether the environments reach the requested rate."""
        return self.steps_per_second >= 0.98 * self.wanted_steps_per_second


def wanted_rate(workload: Workload, costs: Costs, delay_us: float) -> float:
    """Return the steps per second of all environments: at their rate, or as fast as possible without waiting."""
    if workload.rate is not None:
        return workload.environments * workload.rate
    alone = costs.client.us(workload.per_connection) + costs.act_share * costs.worker.us(workload.per_connection)
    return 1e6 * workload.environments / (alone + delay_us)


def forecast_on(workload: Workload, costs: Costs, size: MachineSize, machines: int, bridge: str = "auto") -> Forecast:
    """Return the forecast for a given number of machines, each with an equal share of every part.

    Processes with a fixed rate sleep for the share of time in which the processors idle. Sleep raises the cost of a
    message, and this cost reduces the idle share. The idle share is found by bisection.
    """
    low, high = 0.0, 0.0 if workload.rate is None else 1.0
    for _ in range(SLEEP_STEPS):
        middle = (low + high) / 2
        idle = 1.0 - _forecast_if_idle(workload, costs, size, machines, bridge, middle)[1]
        low, high = (middle, high) if idle > middle else (low, middle)
    return _forecast_if_idle(workload, costs, size, machines, bridge, low)[0]


def _forecast_if_idle(
    workload: Workload, costs: Costs, size: MachineSize, machines: int, bridge: str, sleeps: float
) -> tuple[Forecast, float]:
    """Return the forecast for an idle share `sleeps`, and the used share of all cores."""
    transport = SHARED if machines == 1 and bridge != GRPC else GRPC
    processes = 2.0 * workload.connections / machines
    crowded = crowding(processes, size.cores)
    load = demand(workload, costs, transport, crowded, crowded, crowded, sleeps)
    load = load.scaled(process_slowdown(processes, size.cores, 1.0 - sleeps))
    every = load.client + load.worker + load.pushes * load.exchange_shard * workload.shards
    pool = Pool(size.cores, machines, every + load.learner + load.replay, BURSTS + load.pushes)
    delay = wake_time_us(costs, sleeps) + 1e3 * size.round_trip_ms
    exchange_delay = 1e3 * size.round_trip_ms if transport == GRPC else 0.0
    solution = _solve(workload, costs, load, (pool, pool), delay, exchange_delay)
    steps = wanted_rate(workload, costs, delay)
    parts = _parts(workload, costs, load, solution, size, None, steps)
    found = _forecast(workload, load, solution, size, parts, machines, transport, steps, pool)
    return found, solution.messages / pool.capacity


def forecast(
    workload: Workload, costs: Costs, size: MachineSize, machines: int | None, bridge: str = "auto"
) -> Forecast:
    """Return the forecast for `machines`. None: for the machines that the workload needs."""
    if machines is None:
        return forecast_needed(workload, costs, size, bridge)
    return forecast_on(workload, costs, size, machines, bridge)


def forecast_needed(workload: Workload, costs: Costs, size: MachineSize, bridge: str = "auto") -> Forecast:
    """Return the forecast for the machines needed: one for all parts if it is enough, else some for each part.

    Machines are filled up to `FULL` of their cores and network, and up to `FULL_MEMORY` of their memory.
    """
    single = forecast_on(workload, costs, replace(size, round_trip_ms=0.0), 1, bridge)
    cores, memory = (sum(getattr(part, name) for part in single.parts) for name in ("cores", "gigabytes"))
    if single.enough and cores <= FULL * size.cores and memory <= FULL_MEMORY * size.gigabytes:
        return single
    delay = costs.wake_us + 1e3 * size.round_trip_ms
    messages = wanted_rate(workload, costs, delay) / workload.per_connection
    load = demand(workload, costs, GRPC, 1.0, 1.0, 0.0, 0.0 if workload.rate is None else 1.0 - FULL)
    half, memory = load.wire_bytes / 2, workload.connections * MEGABYTE
    count = _machines(messages * load.client, memory * costs.client_mb, messages * half, size)
    environments = Pool(size.cores, count, load.client)
    traffic = messages * (half + max(load.worker_out_bytes, load.worker_in_bytes))
    count = _machines(messages * load.worker, memory * worker_mb(workload, costs), traffic, size)
    workers = Pool(size.cores, count, load.worker)
    solution = _solve(workload, costs, load, (environments, workers), delay, 1e3 * size.round_trip_ms)
    counts = {"environments": environments.copies, "workers": workers.copies}
    steps = wanted_rate(workload, costs, delay)
    parts = _parts(workload, costs, load, solution, size, counts, steps)
    machines = sum(part.machines or 0 for part in parts)
    return _forecast(workload, load, solution, size, parts, machines, GRPC, steps, None)


def _machines(us_per_second: float, memory: float, bytes_per_second: float, size: MachineSize) -> int:
    """Return how many machines provide this processor time, memory in bytes, and network traffic in each direction."""
    by_cores = us_per_second / 1e6 / (FULL * size.cores)
    by_memory = memory / (FULL_MEMORY * size.gigabytes * GIGABYTE)
    return max(1, *(math.ceil(n) for n in (by_cores, by_memory, bytes_per_second / (FULL * size.bytes_per_second))))


def _solve(
    workload: Workload, costs: Costs, load: Demand, pools: tuple[Pool, Pool], delay: float, exchange_delay: float
) -> Solution:
    """Return the solution of the queueing network. `pools`: of environments and of workers."""
    learn = load.learn + load.exchange_worker
    if workload.workers_push:
        learn = learn + load.exchange_shard + exchange_delay
    network = ClosedNetwork(
        connections=workload.connections,
        client=load.client,
        act=load.act,
        learn=learn,
        delay=delay,
        asking=CLIENT_ACTION_US,
        rollout=workload.rollout,
        overlap=workload.overlap,
        period=0.0 if workload.rate is None else 1e6 / workload.rate,
        environments=pools[0],
        workers=pools[1],
        limit=min(_limits(workload, load, None).values()),
    )
    return solve(network)


def _limits(workload: Workload, load: Demand, size: MachineSize | None) -> dict[str, float]:
    """Return the messages per second at which each server or learner is used up.

    A shard applies one update at a time. Each learner and each replay shard has one core. If `size` is given, the
    network of shards is a limit too, as if each were on a machine of its own.
    """
    limits = {"parameter server": 1e6 / (load.pushes * load.exchange_shard)}
    if workload.learners and workload.replay is not None and workload.replay.samples_per_insert is not None:
        limits["learners"] = workload.learners * 1e6 / load.learner if load.learner else math.inf
    if workload.replay is not None:
        limits["replay servers"] = workload.replay.shards * 1e6 / load.replay if load.replay else math.inf
    if size is not None:
        most = max(load.push_bytes, load.pull_bytes) / workload.shards
        limits["parameter server's network"] = size.bytes_per_second / most
        if workload.replay is not None:
            most = max(load.replay_in_bytes, load.replay_out_bytes) / workload.replay.shards
            limits["replay servers' network"] = size.bytes_per_second / most
    return limits


def _parts(
    workload: Workload,
    costs: Costs,
    load: Demand,
    solution: Solution,
    size: MachineSize,
    counts: dict[str, int] | None,
    steps: float,
) -> tuple[PartForecast, ...]:
    """Return every part at the speed that is reached.

    `counts`: machines of the parts that grow; None: all parts share machines. `steps`: steps per second of all
    environments without waiting.
    """
    x, apart = solution.messages, counts is not None
    counts = counts or {}
    limits = _limits(workload, load, size if apart else None)

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
        demanded = used * steps / workload.per_connection / x  # used share if every environment had its rate
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
            breaks_at=int(workload.environments / demanded) if demanded > 0 else 2**53,
            because=because,
        )

    shards, replay = workload.shards, workload.replay
    half, push, pull = load.wire_bytes / 2, load.push_bytes, load.pull_bytes
    fetched, pushed = half + load.worker_in_bytes, half + load.worker_out_bytes
    servers = max(math.ceil(workload.connections / workload.max_workers), counts.get("workers", 1))
    each, extra = worker_mb(workload, costs), servers * RLX_SERVER_MB
    shard = load.pushes * load.exchange_shard * shards
    found = [
        part("environments", workload.connections, load.client, costs.client_mb, half, half),
        part("workers", workload.connections, load.worker, each, fetched, pushed, extra),
        part("parameter server", shards, shard, shard_mb(workload, shards), push, pull),
    ]
    known = MOST_CONNECTIONS * workload.per_connection
    if known < found[-1].breaks_at:
        found[-1] = replace(found[-1], breaks_at=known, because="parameter server's connections")
    if replay is not None:
        table = SERVER_MB + replay.table_bytes / MEGABYTE
        into, out = load.replay_in_bytes, load.replay_out_bytes
        found.append(part("replay servers", replay.shards, load.replay, table, into, out))
    if workload.learners:
        out, push = load.replay_out_bytes + load.learner_in_bytes, load.learner_out_bytes
        found.append(part("learners", workload.learners, load.learner, learner_mb(workload), out, push))
    return tuple(found)


def _forecast(
    workload: Workload,
    load: Demand,
    solution: Solution,
    size: MachineSize,
    parts: tuple[PartForecast, ...],
    machines: int,
    bridge: str,
    steps: float,
    pool: Pool | None,
) -> Forecast:
    """Return the forecast. `steps`: steps per second of all environments without waiting."""
    first = max((part for part in parts if not part.grows), key=lambda part: part.used)
    bottleneck, pool_breaks_at = first.because, None
    if pool is not None:
        pool_breaks_at = int(workload.environments * pool.capacity * workload.per_connection / steps)
        if solution.messages / pool.capacity > first.used:
            bottleneck = CORES
    workers = next(part.machines for part in parts if part.name == "workers") or 1
    written = checkpoint_bytes(workload)
    return Forecast(
        steps_per_second=solution.messages * workload.per_connection,
        wanted_steps_per_second=steps,
        connections=workload.connections,
        act_p50_ms=solution.quantile(0.5) / 1e3,
        act_p99_ms=solution.quantile(0.99) / 1e3,
        pushes_per_second=solution.messages * load.updates,
        push_bytes_per_second=solution.messages * load.push_bytes,
        staleness=staleness(workload),
        # At least one on each machine of workers. Each has at most `max_workers` workers.
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
    """Return the mean number of updates between a fetch and the push of a gradient.

    Between two pushes of one writer, each of the M - 1 others pushes once: M - 1 updates. With a fetch after every s-th
    push, the mean is (M - 1) (s + 1) / 2 + (s - 1) / 2, including the writer's own updates.
    """
    writers, s = workload.writers, workload.sync_interval
    return (writers - 1) * (s + 1) / 2 + (s - 1) / 2


def shards_needed(workload: Workload, costs: Costs, size: MachineSize, messages: float) -> int | None:
    """Return the fewest shards that use at most `FULL` of a core and a network each; None above `MOST_SHARDS`."""
    for shards in range(1, MOST_SHARDS + 1):
        spread = replace(workload, shards=shards)
        load = demand(spread, costs, GRPC, 1.0, 1.0, 0.0)
        limits = _limits(spread, load, size)
        if all(messages <= FULL * limit for kind, limit in limits.items() if kind.startswith("parameter server")):
            return shards
    return None
