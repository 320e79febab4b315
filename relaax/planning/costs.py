"""Costs of the parts: processor time per message, environment, parameter and item, and memory.

The constants were measured on a virtual machine with two cores; most name their source in docs/results. The result
file of a benchmark replaces the constants that it measured (`costs_from_measurement`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from relaax.planning.workload import Workload

SHARED_US, SHARED_US_PER_PARAMETER = 134.0, 1.28e-3
"""Processor time of a push and pull through shared memory, both sides together: 1.0 ms for 677,747 parameters, 0.14 ms
for 4,611 (relaax docs results/parameter-server)."""
GRPC_US, GRPC_US_PER_PARAMETER = 616.0, 7.35e-3
"""Processor time of a push and pull by gRPC: 5.6 ms and 0.65 ms for the same sizes."""
LARGE_MESSAGE_PARAMETERS, LARGE_MESSAGE_FACTOR = 5_000_000, 3.3
"""Number of parameters in a gRPC message above which each further one costs more, and the factor of its cost: 23 to
28 ns instead of 8 (relaax docs results/growth)."""
SERVER_SHARE = 0.6
"""Share of an exchange's processor time that the parameter server uses. The worker uses the rest
(relaax docs results/parameter-server, second table)."""
CLIENT_ACTION_US = 70.0
"""Processor time of the client for one action (tests/benchmarks/client_overhead.py)."""
SHARED, GRPC = "shared_memory", "grpc"


@dataclass(frozen=True, slots=True)
class MessageCost:
    """Processor time of one message: `fixed + each * environments`, times `cold` if the caches are cold."""

    fixed: float
    each: float
    cold: float = 1.0

    def us(self, environments: int, crowding: float = 0.0) -> float:
        """Return microseconds. `crowding`: from 0, warm caches, to 1, cold ones (see the function `crowding`)."""
        return (self.fixed + self.each * environments) * (1.0 + crowding * (self.cold - 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """All costs, and their sources."""

    sources: tuple[str, ...]
    client: MessageCost
    """An environment's program: environment and client."""
    worker: MessageCost
    """A worker: wire, acting and learning, without the exchange with the parameter server."""
    act_share: float
    """Share of `worker` before the actions are sent. The rest is learning."""
    wake_us: float
    """Part of an action's time in which no process runs: the wake-ups of two processes."""
    exchange_scale: float = 1.0
    """Measured cost of an exchange, divided by `exchange_us`."""
    exchange_cold: float = 1.0
    paced: float = 1.0
    """Factor of a message's cost if its processes have a fixed rate and the processors idle between messages."""
    paced_wake_us: float | None = None
    """`wake_us` on idle processors. None: the same."""
    learner_us: float = 0.0
    learner_us_per_item: float = 0.0
    """Processor time of a learner for an update, and for each transition of its batch."""
    insert_us: float = 8.0
    insert_us_per_byte: float = 2.4e-3
    sample_us: float = 5.0
    sample_us_per_byte: float = 2.2e-3
    """Processor time of a replay server for an item, by gRPC (docs/results/replay-service.csv)."""
    client_mb: float = 40.0
    worker_mb: float | None = None
    """Unshared memory of a worker. None: `relaax.planning.demand` estimates it."""


def wake_time_us(costs: Costs, sleeps: float) -> float:
    """Return the time to wake two processes. `sleeps`: the share of time, 0 to 1, in which the processors idle."""
    idle = costs.wake_us if costs.paced_wake_us is None else costs.paced_wake_us
    return costs.wake_us + sleeps * (idle - costs.wake_us)


def exchange_us(parameters: float, bridge: str, pushes: float = 1.0) -> float:
    """Return the processor time of `pushes` exchanges, both sides together. `parameters`: of each exchange.

    c = c0 + c1 * P. By gRPC, c1 is `LARGE_MESSAGE_FACTOR` times as large for the parameters beyond
    `LARGE_MESSAGE_PARAMETERS`.
    """
    if bridge == GRPC:
        beyond = max(0.0, parameters - LARGE_MESSAGE_PARAMETERS) * (LARGE_MESSAGE_FACTOR - 1.0)
        return pushes * (GRPC_US + GRPC_US_PER_PARAMETER * (parameters + beyond))
    return pushes * (SHARED_US + SHARED_US_PER_PARAMETER * parameters)


WARM_PROCESSES, COLD_PROCESSES = 2.0, 8.0
"""Processes per core up to which caches stay warm, and from which they are cold."""
SLOWDOWN_PER_DOUBLING = 0.2
"""Share that each doubling of processes per core beyond `COLD_PROCESSES` adds to every cost."""


def process_slowdown(processes: float, cores: float, busy: float) -> float:
    """Return the factor by which many processes per core raise every cost. `busy`: the share of time that they run.

    Each doubling of processes per core beyond `COLD_PROCESSES` adds a fifth. This fits the study `scaling`
    (relaax docs results/scaling): with no fixed rate on two cores, a step of CartPole takes 0.39 ms with 4 connections,
    0.6 with 64, 0.7 with 128.
    """
    return 1.0 + SLOWDOWN_PER_DOUBLING * busy * math.log2(max(1.0, processes / cores / COLD_PROCESSES))


def crowding(processes: float, cores: float) -> float:
    """Return how cold the caches are: 0 with at most 2 processes per core, 1 with at least 8, linear in between.

    On two cores, a step of CartPole takes 0.25 to 0.37 ms with 2 connections (4 processes) and 0.78 ms with 8 (16
    processes). More connections, up to 64, do not raise it (relaax docs results/growth).
    """
    share = (processes / cores - WARM_PROCESSES) / (COLD_PROCESSES - WARM_PROCESSES)
    return min(1.0, max(0.0, share))


NEEDED = ("processor_single", "processor_training", "act_latency_ms", "parameters", "bridge")
LEAST_SHARE, MOST_SHARE = 0.2, 0.9
PROCESSES = 2
"""Processes of a connection: client and worker."""


class UnusableMeasurement(ValueError):
    """A benchmark's result file lacks figures. The message names them."""


def costs_from_measurement(result: Mapping[str, Any], workload: Workload, name: str) -> Costs:
    """Return the costs from the result of a benchmark. Raises UnusableMeasurement.

    Three measurements give the fields of each `MessageCost`: messages of one environment with warm caches
    (`processor_single`), of n environments (`processor_training`), and of one environment among many processes
    (`processor_crowd`). `workload` gives the length of the measured rollouts.
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
        lines[kind] = message_cost_from(one, many, n, cold, crowding(PROCESSES * training["connections"], cores))
    act = 1e3 * result["act_latency_ms"]["p50"]
    worker = lines["worker"].us(1)
    share = min(MOST_SHARE, max(LEAST_SHARE, (act - CLIENT_ACTION_US) / worker))
    wake = max(0.0, act - CLIENT_ACTION_US - share * worker)
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
    """Return the factor by which a step costs more after client and worker slept than in a busy loop."""
    if crowd is None or paced is None:
        return 1.0
    free, held = (sum(point["us"].get(kind, 0.0) for kind in ("client", "worker")) for point in (crowd, paced))
    return max(1.0, held / free) if free > 0 else 1.0


def _paced_wake(result: Mapping[str, Any], acting: float, wake: float) -> float:
    """Return the time to wake two processes on idle processors: the time of an action minus its processor time."""
    act = result.get("processor_paced", {}).get("act_ms")
    return wake if act is None else max(wake, 1e3 * act["p50"] - CLIENT_ACTION_US - acting)


def _message(point: Mapping[str, Any], kind: str, exchange: float, workload: Workload) -> float:
    """Return microseconds for one message, without the worker's share of the exchange of each rollout."""
    message = float(point["us"].get(kind, 0.0)) * int(point["environments"])
    if kind == "worker" and workload.workers_push:
        return max(message - (1.0 - SERVER_SHARE) * exchange / workload.rollout, 0.1 * message)
    return message


def message_cost_from(one: float, many: float, n: int, cold: float, crowded: float) -> MessageCost:
    """Return the cost through two points: a message of 1 environment, and of n at the crowding `crowded`."""
    if n == 1:
        return MessageCost(one, 0.0, cold)
    warm = many / (1.0 + crowded * (cold - 1.0))
    each = min(max(0.0, (warm - one) / (n - 1)), one)
    return MessageCost(one - each, each, cold)


def _cold_exchange(single: Mapping[str, Any], crowd: Mapping[str, Any] | None) -> float:
    served = [point["us"].get("parameter_server", 0.0) for point in (single, crowd) if point is not None]
    return max(1.0, served[1] / served[0]) if len(served) == 2 and served[0] > 0 else 1.0


def _replay(costs: Costs, result: Mapping[str, Any], workload: Workload) -> Costs:
    """Return `costs` with the replay server's measured speed, if there is one, by the transport that was used."""
    if workload.replay is None or "replay_inserts_per_second" not in result:
        return costs
    return replace(
        costs,
        insert_us=1e6 / result["replay_inserts_per_second"],
        insert_us_per_byte=0.0,
        sample_us=1e6 / result["replay_samples_per_second"],
        sample_us_per_byte=0.0,
    )


def default_costs(workload: Workload, client: MessageCost, client_mb: float) -> Costs:
    """Return costs by the figures of the project's own machine.

    `client`: measured with the environment's own program. A worker's message of n environments takes FIXED_US +
    n (EACH_US + m US_PER_MILLION), where m is the network's multiplications in millions. Acting takes ACT_FIXED_US and
    the share `ACT_SHARE` of the part that is not fixed.
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
    "worker and servers: figures of the project's own machine, 2 cores (docs/scaling.md); for figures of your machine, "
    "run `relaax bench CONFIG --json FILE` and pass --measured FILE"
)
FIXED_US, EACH_US, US_PER_MILLION = 110.0, 6.0, 55.0
ACT_FIXED_US, ACT_SHARE = 60.0, 0.4
COLD = 2.2
"""Factor of cost with cold caches. If caches are overwritten between calls, a step of CartPole takes 56 us instead of
23 with one environment, and 64 instead of 36 with 8 (docs/results/archive/2026-11-22-engine.md)."""
COLD_NETWORK = 1.3
PACED = 1.5
WAKE_US = 30.0
LEARNER_US, LEARNER_US_PER_MILLION = 600.0, 90.0
