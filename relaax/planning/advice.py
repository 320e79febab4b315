"""Settings that would serve more environments, found by trying them in the model."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relaax.planning.costs import GRPC, Costs
from relaax.planning.forecast import CORES, FULL, MOST_SHARDS, Forecast, forecast, shards_needed
from relaax.planning.workload import MachineSize, Workload

LEAST_GAIN = 1.1
"""Minimum factor by which a setting must raise the number of environments, to be proposed."""
MOST_SETTINGS = 6
LARGE_BATCH = 512
MOST_LEARNERS = 256
LONGEST_ROLLOUT = 100
"""Steps. Longer rollouts are not proposed."""
LARGEST_CONNECTION = 64
"""Environments. Larger connections are not proposed."""


@dataclass(frozen=True, slots=True)
class Advice:
    """A setting, as KEY=VALUE or in words, and its effect in the model."""

    setting: str
    sentence: str


def advice(
    workload: Workload, costs: Costs, size: MachineSize, machines: int | None, bridge: str, now: Forecast
) -> list[Advice]:
    """Return settings that serve more environments before the first part breaks. Each includes the settings before it.

    If no part is used above `FULL`, the list is empty or has only advice on staleness. Each step adds the setting with
    the largest effect.
    """
    found = _staleness_advice(workload, now)
    while len(found) < MOST_SETTINGS and (not now.enough or _highest_use(now) > FULL):
        others = [
            (forecast(other, costs, size, machines, bridge), other, setting, price)
            for setting, other, price in _alternatives(workload, costs, size, now)
        ]
        if not others:
            break
        first = now.bottleneck
        then, other, setting, price = max(
            others, key=lambda option: (_breaks_at_of(option[0], first), breaks_at(option[0]))
        )
        if _breaks_at_of(then, first) < LEAST_GAIN * _breaks_at_of(now, first):
            break
        also = " then" if any("breaks" in each.sentence for each in found) else ""
        sentence = (
            f"the first part{also} breaks at {breaks_at(then):,} environments, not at {breaks_at(now):,}; {price}"
        )
        found.append(Advice(setting, sentence))
        workload, now = other, then
    return found


def _staleness_advice(workload: Workload, now: Forecast) -> list[Advice]:
    if workload.max_staleness is None or now.staleness <= workload.max_staleness:
        return []
    return [
        Advice(
            "algorithm.max_staleness",
            f"gradients are {now.staleness:.0f} updates behind on average, and those behind by more than "
            f"{workload.max_staleness} are discarded: raise this limit, or use fewer, larger connections",
        )
    ]


def _highest_use(found: Forecast) -> float:
    """Return the largest used share among the parts that do not grow by themselves."""
    return max(part.used for part in found.parts if not part.grows or part.machines is None)


def _breaks_at_of(found: Forecast, first: str) -> float:
    """Return the number of environments at which the part `first` breaks."""
    if first == CORES:
        return float(found.pool_breaks_at or math.inf)
    return float(min(part.breaks_at for part in found.parts if first.startswith(part.name)))


def breaks_at(found: Forecast) -> int:
    """Return the number of environments at which the first part is used up. Parts that grow do not count."""
    fixed = [part.breaks_at for part in found.parts if not part.grows]
    return min(fixed if found.pool_breaks_at is None else [*fixed, found.pool_breaks_at])


def _alternatives(
    workload: Workload, costs: Costs, size: MachineSize, now: Forecast
) -> Iterator[tuple[str, Workload, str]]:
    """Yield each setting that applies, the workload with it, and its price in words."""
    if workload.rollout_key and workload.workers_push and workload.rollout < LONGEST_ROLLOUT:
        longer = min(LONGEST_ROLLOUT, 4 * workload.rollout)
        yield f"{workload.rollout_key}={longer}", replace(workload, rollout=longer), "fewer, larger updates"
    if workload.sync_interval == 1 and workload.workers_push:
        yield "algorithm.sync_interval=4", replace(workload, sync_interval=4), "gradients are staler"
    if workload.wire_bytes == 4 and now.bridge == GRPC:
        setting = "relaax-rlx-server.wire_precision=float16"
        yield setting, replace(workload, wire_bytes=2), "parameters are rounded on the wire"
    messages = now.wanted_steps_per_second / workload.per_connection
    shards = shards_needed(workload, costs, size, messages) or 2 * workload.shards
    if workload.shards < shards <= MOST_SHARDS:
        yield f"relaax-parameter-server.shards={shards}", replace(workload, shards=shards), "more processes"
    if workload.per_connection < LARGEST_CONNECTION and workload.environments > workload.per_connection:
        more = min(LARGEST_CONNECTION, 4 * workload.per_connection, workload.environments)
        price = "larger messages, and gradients over more environments"
        yield f"{more} environments per connection", replace(workload, per_connection=more), price
    scale = workload.environments / FULL / breaks_at(now)
    if workload.learners:
        more = min(MOST_LEARNERS, math.ceil(max(2.0, scale) * workload.learners))
        yield f"relaax-learner.learners={more}", replace(workload, learners=more), "gradients are staler"
    if workload.learners and workload.replay is not None and workload.replay.batch < LARGE_BATCH:
        larger = replace(workload.replay, batch=LARGE_BATCH)
        setting = f"algorithm.batch_size={LARGE_BATCH}"
        yield setting, replace(workload, replay=larger), "fewer, larger updates: a batch of Horgan et al. 2018"
    if workload.replay is not None:
        before = workload.replay.shards
        more = min(MOST_SHARDS, math.ceil(max(2.0, scale) * before))
        spread = replace(workload.replay, shards=more, table_bytes=workload.replay.table_bytes * before / more)
        yield f"relaax-replay-server.shards={more}", replace(workload, replay=spread), "the memory is spread"
