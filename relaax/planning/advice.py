"""What would help: other settings, tried in the model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relaax.planning.costs import GRPC, Costs
from relaax.planning.forecast import CORES, FULL, MOST_SHARDS, Forecast, forecast, shards_needed
from relaax.planning.workload import MachineSize, Workload

WORTH = 1.1
"""A setting is named that lets so many times as many environments in."""
MOST = 6
LARGE_BATCH = 512
MOST_LEARNERS = 256
LONG = 100
"""Steps of a rollout beyond which longer ones are not proposed."""
MANY = 64
"""Environments of a connection beyond which more are not proposed."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting, KEY=VALUE or words, and what the model says that it brings."""

    setting: str
    sentence: str


def advice(
    workload: Workload, costs: Costs, size: MachineSize, machines: int | None, bridge: str, now: Forecast
) -> list[Advice]:
    """Return settings that let more environments in before the first part breaks, each with those before it.

    There are none if no part is used above `FULL`. At each step the setting is taken that brings most.
    """
    found = _stale(workload, now)
    while len(found) < MOST and (not now.enough or _use(now) > FULL):
        others = [
            (forecast(other, costs, size, machines, bridge), other, setting, price)
            for setting, other, price in _others(workload, costs, size, now)
        ]
        if not others:
            break
        first = now.bottleneck
        then, other, setting, price = max(others, key=lambda option: (_room(option[0], first), breaks_at(option[0])))
        if _room(then, first) < WORTH * _room(now, first):
            break
        also = " then" if any("breaks" in each.sentence for each in found) else ""
        sentence = (
            f"the first part{also} breaks at {breaks_at(then):,} environments, not at {breaks_at(now):,}; {price}"
        )
        found.append(Advice(setting, sentence))
        workload, now = other, then
    return found


def _stale(workload: Workload, now: Forecast) -> list[Advice]:
    if workload.max_staleness is None or now.staleness <= workload.max_staleness:
        return []
    return [
        Advice(
            "algorithm.max_staleness",
            f"gradients are {now.staleness:.0f} updates behind on average, those above {workload.max_staleness} are "
            "discarded: raise it, or have fewer connections of more environments",
        )
    ]


def _use(found: Forecast) -> float:
    """Return the share of what it can do that the busiest part is used which does not grow by itself."""
    return max(part.used for part in found.parts if not part.grows or part.machines is None)


def _room(found: Forecast, first: str) -> float:
    """Return the environments at which the part that breaks first now would break."""
    if first == CORES:
        return float(found.pool_breaks_at or math.inf)
    return float(min(part.breaks_at for part in found.parts if first.startswith(part.name)))


def breaks_at(found: Forecast) -> int:
    """Return the environments at which the first part that does not grow by itself is used up."""
    fixed = [part.breaks_at for part in found.parts if not part.grows]
    return min(fixed if found.pool_breaks_at is None else [*fixed, found.pool_breaks_at])


def _others(workload: Workload, costs: Costs, size: MachineSize, now: Forecast) -> Iterator[tuple[str, Workload, str]]:
    """Yield settings, the workload with each, and its price in words."""
    if workload.rollout_key and workload.workers_push and workload.rollout < LONG:
        longer = min(LONG, 4 * workload.rollout)
        yield f"{workload.rollout_key}={longer}", replace(workload, rollout=longer), "fewer, larger updates"
    if workload.sync_interval == 1 and workload.workers_push:
        yield "algorithm.sync_interval=4", replace(workload, sync_interval=4), "gradients are older"
    if workload.wire_bytes == 4 and now.bridge == GRPC:
        setting = "relaax-rlx-server.wire_precision=float16"
        yield setting, replace(workload, wire_bytes=2), "parameters are rounded on the wire"
    messages = now.wanted_steps_per_second / workload.per_connection
    shards = shards_needed(workload, costs, size, messages) or 2 * workload.shards
    if workload.shards < shards <= MOST_SHARDS:
        yield f"relaax-parameter-server.shards={shards}", replace(workload, shards=shards), "more processes, one cut"
    if workload.per_connection < MANY and workload.environments > workload.per_connection:
        more = min(MANY, 4 * workload.per_connection, workload.environments)
        price = "larger messages, and gradients over more environments"
        yield f"{more} environments per connection", replace(workload, per_connection=more), price
    scale = workload.environments / FULL / breaks_at(now)
    if workload.learners:
        more = min(MOST_LEARNERS, math.ceil(max(2.0, scale) * workload.learners))
        yield f"relaax-learner.learners={more}", replace(workload, learners=more), "gradients are older"
    if workload.learners and workload.replay is not None and workload.replay.batch < LARGE_BATCH:
        larger = replace(workload.replay, batch=LARGE_BATCH)
        setting = f"algorithm.batch_size={LARGE_BATCH}"
        yield setting, replace(workload, replay=larger), "fewer, larger updates: a batch of Horgan et al. 2018"
    if workload.replay is not None:
        before = workload.replay.shards
        more = min(MOST_SHARDS, math.ceil(max(2.0, scale) * before))
        spread = replace(workload.replay, shards=more, table_bytes=workload.replay.table_bytes * before / more)
        yield f"relaax-replay-server.shards={more}", replace(workload, replay=spread), "the memory is spread"
