"""What the parts cost: processor time by message, by environment, by parameter and by item; memory.

The constants come from docs/results of the repository, two cores of a virtual machine, and each says from where. A
benchmark's file replaces what it has measured (`relaax.planning.costs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax.planning.workload import Workload

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
ASKING_US = 70.0
"""Processor time of the client for one action (tests/benchmarks/client_overhead.py)."""
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
    """Of a worker, not shared; None: by `relaax.planning.demand`."""


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


NEEDED = ("processor_single", "processor_training", "act_latency_ms", "parameters", "bridge")
LEAST_SHARE, MOST_SHARE = 0.2, 0.9
PROCESSES = 2
"""Of a connection: client and worker."""


class UnusableMeasurement(ValueError):
    """A benchmark's file lacks figures. The message says which."""


def measured(result: Mapping[str, Any], workload: Workload, name: str) -> Costs:
    """Return the costs of a benchmark's result. Raises UnusableMeasurement.

    Three points give a line and a factor: messages of one environment with warm caches (`processor_single`), of n
    (`processor_training`), and of one among many processes (`processor_crowd`). `workload` says how long rollouts were.
    """
    missing = [key for key in NEEDED if key not in result]
    if missing:
        raise UnusableMeasurement(
            f"{name} lacks {', '.join(missing)}: measure it with this version's `relaax bench CONFIG --json {name}`"
        )
    cores, bridge = result["machine"]["cores"], GRPC if result["bridge"] == GRPC else SHARED
    exchange = exchange_us(result["parameters"], bridge)
    single, training = result["processor_single"], result["processor_training"]
    crowd = result.get("processor_crowd")
    n = training["environments"]
    served = single["us"].get("parameter_server", 0.0) if workload.workers_push else 0.0
    scale = max(0.2, min(5.0, served / (SERVER_SHARE * exchange))) if served > 0 else 1.0
    lines = {}
    for kind in ("client", "worker"):
        one, many = (_message(each, kind, scale * exchange, workload) for each in (single, training))
        cold = 1.0
        if crowd is not None:
            cold = max(1.0, _message(crowd, kind, scale * exchange, workload) / one)
        lines[kind] = line_through(one, many, n, cold, crowding(PROCESSES * training["connections"], cores))
    act = 1e3 * result["act_latency_ms"]["p50"]
    worker = lines["worker"].us(1)
    share = min(MOST_SHARE, max(LEAST_SHARE, (act - ASKING_US) / worker))
    wake = max(0.0, act - ASKING_US - share * worker)
    paced = _paced(crowd, result.get("processor_paced"))
    learner, batch = training["us"].get("learner", 0.0), workload.replay.batch if workload.replay is not None else 0
    memory = result.get("worker_memory_mb", {}).get("mean")
    costs = Costs(
        sources=(f"{name} ({result.get('name', 'a benchmark')}, {result.get('date', 'undated')})",),
        client=lines["client"],
        worker=lines["worker"],
        act_share=share,
        wake_us=wake,
        paced=paced,
        paced_wake_us=_paced_wake(result, share * lines["worker"].us(1, 1.0) * paced, wake),
        exchange_scale=scale,
        exchange_cold=_cold_exchange(single, crowd),
        learner_us=min(learner, LEARNER_US),
        learner_us_per_item=max(0.0, learner - LEARNER_US) / max(1, batch),
        worker_mb=memory,
    )
    return _replay(costs, result, workload)


def _paced(crowd: Mapping[str, Any] | None, paced: Mapping[str, Any] | None) -> float:
    """Return how much more a step costs whose processes slept before it, client and worker together."""
    if crowd is None or paced is None:
        return 1.0
    free, held = (sum(point["us"].get(kind, 0.0) for kind in ("client", "worker")) for point in (crowd, paced))
    return max(1.0, held / free) if free > 0 else 1.0


def _paced_wake(result: Mapping[str, Any], acting: float, wake: float) -> float:
    """Return what waking takes where processors idle: of an action there, all that is nobody's processor time."""
    act = result.get("processor_paced", {}).get("act_ms")
    return wake if act is None else max(wake, 1e3 * act["p50"] - ASKING_US - acting)


def _message(point: Mapping[str, Any], kind: str, exchange: float, workload: Workload) -> float:
    """Return microseconds for one message, without a worker's share of the exchange, which comes once a rollout."""
    message = float(point["us"].get(kind, 0.0)) * int(point["environments"])
    if kind == "worker" and workload.workers_push:
        return max(message - (1.0 - SERVER_SHARE) * exchange / workload.rollout, 0.1 * message)
    return message


def line_through(one: float, many: float, n: int, cold: float, crowded: float) -> MessageCost:
    """Return the cost through two points: of a message of 1 environment, and of n in a crowd."""
    if n == 1:
        return MessageCost(one, 0.0, cold)
    warm = many / (1.0 + crowded * (cold - 1.0))
    each = min(max(0.0, (warm - one) / (n - 1)), one)
    return MessageCost(one - each, each, cold)


def _cold_exchange(single: Mapping[str, Any], crowd: Mapping[str, Any] | None) -> float:
    served = [point["us"].get("parameter_server", 0.0) for point in (single, crowd) if point is not None]
    return max(1.0, served[1] / served[0]) if len(served) == 2 and served[0] > 0 else 1.0


def _replay(costs: Costs, result: Mapping[str, Any], workload: Workload) -> Costs:
    """Take a replay server's speed, if it was measured: by gRPC or memory, whichever was used."""
    if workload.replay is None or "replay_inserts_per_second" not in result:
        return costs
    return replace(
        costs,
        insert_us=1e6 / result["replay_inserts_per_second"],
        insert_us_per_byte=0.0,
        sample_us=1e6 / result["replay_samples_per_second"],
        sample_us_per_byte=0.0,
    )


def defaults(workload: Workload, client: MessageCost, client_mb: float) -> Costs:
    """Return costs by the figures of the repository, for a network of that many multiplications.

    `client`: as the environment's own program was just measured. A worker's message takes FIXED_US + n (EACH_US + m
    US_PER_MILLION), of which the network's share is `ACT_SHARE`.
    """
    million = workload.multiplications / 1e6
    network = million * US_PER_MILLION
    code = (FIXED_US + EACH_US) / (FIXED_US + EACH_US + network)
    cold = COLD * code + COLD_NETWORK * (1.0 - code)
    worker = MessageCost(FIXED_US, EACH_US + network, cold)
    acting = ACT_FIXED_US + ACT_SHARE * (worker.us(1) - FIXED_US)
    return Costs(
        sources=(SOURCE,),
        client=client,
        worker=worker,
        act_share=min(MOST_SHARE, max(LEAST_SHARE, acting / worker.us(1))),
        wake_us=WAKE_US,
        exchange_cold=COLD,
        paced=1.0 + (PACED - 1.0) * code,
        learner_us=LEARNER_US,
        learner_us_per_item=million * LEARNER_US_PER_MILLION,
        client_mb=client_mb,
    )


SOURCE = (
    "worker and servers: figures of the project's own machine, 2 cores (docs/scaling.md); --measured FILE takes "
    "those of yours, which `relaax bench CONFIG --json FILE` measures"
)
FIXED_US, EACH_US, US_PER_MILLION = 110.0, 6.0, 55.0
ACT_FIXED_US, ACT_SHARE = 60.0, 0.4
COLD = 2.2
"""docs/architecture.md: with caches overwritten between the calls CartPole's step takes 56 us instead of 23 with one
environment, 64 instead of 36 with 8."""
COLD_NETWORK = 1.3
PACED = 1.5
WAKE_US = 30.0
LEARNER_US, LEARNER_US_PER_MILLION = 600.0, 90.0
