"""Costs from the JSON file of `relaax bench`, and from the figures of the repository where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relaax.planning.costs import GRPC, SERVER_SHARE, SHARED, Costs, MessageCost, crowding, exchange_us
from relaax.planning.workload import Workload

NEEDED = ("processor_single", "processor_training", "act_latency_ms", "parameters", "bridge")
LEAST_SHARE, MOST_SHARE = 0.2, 0.9
PROCESSES = 2
"""Of a connection: client and worker."""


class UnusableMeasurement(ValueError):
    """A benchmark's file lacks figures. The message says which."""


def _worker(by_kind: Mapping[str, float], environments: int, exchange: float, rollout: int) -> float:
    """Return a worker's microseconds for one message, the exchange left out, which comes once a rollout."""
    message = by_kind.get("worker", 0.0) * environments
    return max(message - (1.0 - SERVER_SHARE) * exchange / rollout, 0.1 * message)


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
    asking = result.get("client_us_per_message", ASKING_US)  # in files of earlier versions
    worker = lines["worker"].us(1)
    share = min(MOST_SHARE, max(LEAST_SHARE, (act - asking) / worker))
    wake = max(0.0, act - asking - share * worker)
    paced = _paced(crowd, result.get("processor_paced"))
    learner = training["us"].get("learner", 0.0)
    memory = result.get("worker_memory_mb", {}).get("mean")
    costs = Costs(
        sources=(f"{name} ({result.get('name', 'a benchmark')}, {result.get('date', 'undated')})",),
        client=lines["client"],
        worker=lines["worker"],
        act_share=share,
        wake_us=wake,
        paced=paced,
        paced_wake_us=_paced_wake(result, asking + share * lines["worker"].us(1, 1.0) * paced, wake),
        asking_us=asking,
        exchange_scale=scale,
        exchange_cold=_cold_exchange(single, crowd),
        learner_us=min(learner, LEARNER_US),
        learner_us_per_item=max(0.0, learner - LEARNER_US) / max(1, workload_batch(workload)),
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
    return wake if act is None else max(wake, 1e3 * act["p50"] - acting)


def _message(point: Mapping[str, Any], kind: str, exchange: float, workload: Workload) -> float:
    n = int(point["environments"])
    if kind == "worker" and workload.workers_push:
        return _worker(point["us"], n, exchange, workload.rollout)
    return float(point["us"].get(kind, 0.0)) * n


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
        asking_us=ASKING_US,
        learner_us=LEARNER_US,
        learner_us_per_item=million * LEARNER_US_PER_MILLION,
        client_mb=client_mb,
    )


def workload_batch(workload: Workload) -> int:
    """Return the items of a learner's batch; 0 without replay memory."""
    return workload.replay.batch if workload.replay is not None else 0


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
WAKE_US, ASKING_US = 30.0, 70.0
LEARNER_US, LEARNER_US_PER_MILLION = 600.0, 90.0
