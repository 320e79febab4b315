"""Figures of a forecast, compared with values calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relaax.planning.costs import GRPC, SHARED, Costs, MessageCost
from relaax.planning.demand import Demand, demand, learner_mb, shard_mb, worker_mb
from relaax.planning.forecast import (
    FULL,
    FULL_MEMORY,
    MOST_CONNECTIONS,
    Forecast,
    PartForecast,
    forecast_needed,
    forecast_on,
    shards_needed,
)
from relaax.planning.workload import MachineSize, ReplayWorkload, Workload

SIZE = MachineSize(cores=8, gigabytes=32.0, gigabits=1.0, round_trip_ms=0.2)
WIDE = replace(SIZE, gigabits=400.0)
COSTS = Costs(
    sources=("a test",),
    client=MessageCost(100.0, 10.0),
    worker=MessageCost(100.0, 25.0),
    act_share=0.5,
    wake_us=50.0,
    learner_us=1000.0,
    learner_us_per_item=10.0,
)
ACTORS = Workload(
    environments=100,
    per_connection=4,
    rate=30.0,
    observation_bytes=100.0,
    parameters=10_000,
    multiplications=10_000.0,
    rollout=5,
)
REPLAY = ReplayWorkload(
    shards=1, table_bytes=1e9, insert_bytes=8e3, sample_bytes=56e3, batch=32, samples_per_insert=4.0
)
LEARNERS = replace(ACTORS, rollout=100, workers_push=False, learners=2, replay=REPLAY)


def alone(workload: Workload, costs: Costs = COSTS, bridge: str = GRPC) -> Demand:
    """Return the demand of a message with warm caches."""
    return demand(workload, costs, bridge, 0.0, 0.0, 0.0)


def part(found: Forecast, name: str) -> PartForecast:
    return next(each for each in found.parts if each.name == name)


def messages(found: Forecast) -> float:
    return found.steps_per_second / 4


def test_demand_of_workers_that_push_matches_calculation() -> None:
    load = alone(ACTORS)
    assert (load.client, load.act, load.learn) == (140.0, 100.0, 500.0)
    assert (load.pushes, load.updates, load.learner, load.replay) == (0.2, 0.2, 0.0, 0.0)
    # An exchange by gRPC: 616 + 7.35e-3 x 10,000; 0.6 of it is the server's.
    assert load.exchange_shard == pytest.approx(0.6 * 689.5)
    assert load.exchange_worker == pytest.approx(0.4 * 689.5)
    assert load.worker == pytest.approx(100 + (500 + 0.4 * 689.5) / 5)
    assert load.wire_bytes == 165 + 4 * 100
    assert load.worker_out_bytes == load.worker_in_bytes == pytest.approx(40_200 / 5)
    assert alone(ACTORS, bridge=SHARED).exchange_shard == pytest.approx(0.6 * (134 + 1.28e-3 * 10_000))


def test_longer_sync_interval_reduces_fetched_parameters() -> None:
    """With one fetch per four pushes, five of eight vectors are sent."""
    load = alone(replace(ACTORS, sync_interval=4))
    assert load.exchange_shard == pytest.approx(0.6 * (616 + 7.35e-3 * 10_000 * 5 / 8))
    assert (load.worker_out_bytes, load.worker_in_bytes) == pytest.approx((40_200 / 5, 10_200 / 5))


def test_exchange_cost_is_per_shard() -> None:
    load = alone(replace(ACTORS, shards=4))
    assert load.exchange_shard == pytest.approx(0.6 * (616 + 7.35e-3 * 2_500)), "cost of each shard"
    assert load.exchange_worker == pytest.approx(4 * 0.4 * (616 + 7.35e-3 * 2_500)), "cost of all shards"
    assert load.worker_out_bytes == pytest.approx((40_000 + 4 * 200) / 5)


def test_demand_of_actors_and_learners_matches_calculation() -> None:
    """A message of four environments inserts 4 items and allows 16 samples: half of an update with 32."""
    load = alone(LEARNERS)
    assert (load.pushes, load.updates) == (0.51, 0.5)
    assert load.learner == pytest.approx(0.5 * (1000 + 32 * 10))
    assert load.replay == pytest.approx(4 * (8 + 2.4e-3 * 8_000) + 16 * (5 + 2.2e-3 * 56_000))
    assert (load.replay_in_bytes, load.replay_out_bytes) == (4 * 8e3, 16 * 56e3)
    assert load.exchange_worker == pytest.approx(0.5 * 0.4 * 689.5), "a push without a gradient"
    assert (load.worker_out_bytes, load.worker_in_bytes) == pytest.approx((200 / 100, 40_200 / 100))
    assert load.learner_out_bytes == load.learner_in_bytes == pytest.approx(0.5 * 40_200)
    assert load.push_bytes == pytest.approx(2 + 0.5 * 40_200)


def test_cold_caches_raise_the_cost_of_exchanges() -> None:
    costs = replace(COSTS, exchange_cold=3.0)
    usual, cold = alone(ACTORS, costs), demand(ACTORS, costs, GRPC, 0.0, 0.5, 1.0)
    assert cold.exchange_worker == pytest.approx(2.0 * usual.exchange_worker)
    assert cold.exchange_shard == pytest.approx(3.0 * usual.exchange_shard)
    assert cold.client == usual.client


@pytest.mark.parametrize("machines", [1, 4])
def test_each_part_reports_its_own_traffic(machines: int) -> None:
    found, load = forecast_on(LEARNERS, COSTS, WIDE, machines), alone(LEARNERS)
    traffic = {
        "environments": (load.wire_bytes / 2, load.wire_bytes / 2),
        "workers": (load.wire_bytes / 2 + load.worker_in_bytes, load.wire_bytes / 2 + load.worker_out_bytes),
        "parameter server": (load.push_bytes, load.pull_bytes),
        "replay servers": (load.replay_in_bytes, load.replay_out_bytes),
        "learners": (load.replay_out_bytes + load.learner_in_bytes, load.learner_out_bytes),
    }
    assert [each.name for each in found.parts] == list(traffic)
    for name, (inward, outward) in traffic.items():
        each = part(found, name)
        assert each.in_gigabits == pytest.approx(8e-9 * messages(found) * inward), name
        assert each.out_gigabits == pytest.approx(8e-9 * messages(found) * outward), name


def test_each_part_reports_its_own_memory() -> None:
    workload = replace(LEARNERS, replay=replace(REPLAY, shards=3), shards=2, max_workers=10)
    found = forecast_on(workload, COSTS, WIDE, 1)
    assert found.rlx_servers == 3
    megabytes = {each.name: 1e3 * each.gigabytes for each in found.parts}
    assert megabytes["environments"] == pytest.approx(25 * 40)
    assert megabytes["workers"] == pytest.approx(25 * worker_mb(workload, COSTS) + 3 * 150), "and shared memory"
    assert megabytes["parameter server"] == pytest.approx(2 * shard_mb(workload, 2))
    assert megabytes["replay servers"] == pytest.approx(3 * (150 + 1000)), "per shard, with its part of the table"
    assert megabytes["learners"] == pytest.approx(2 * learner_mb(workload))


def test_process_memory_matches_calculation() -> None:
    large = replace(ACTORS, parameters=10**6, slots=2, target=True)
    # Half of the parameters, their slots and copies of both: 9 vectors of 2 MB. 25 writers have a message each way.
    assert shard_mb(large, 2) == pytest.approx(150 + 9 * 2 + 25 * 2 * 2)
    assert shard_mb(replace(large, environments=4000), 2) == pytest.approx(150 + 9 * 2 + 80 * 2 * 2), "80 calls"
    assert shard_mb(replace(large, workers_push=False, learners=3), 2) == pytest.approx(150 + 9 * 2 + 3 * 2 * 2)
    longest = replace(ACTORS, parameters=0, rollout=10_000)
    assert worker_mb(longest, COSTS) == pytest.approx(13 + 2 * 4 * 101 * 400 / 1e6), "a rollout of at most 100 steps"
    assert learner_mb(LEARNERS) == pytest.approx(150 + (8 * 4 * 10_000 + 3 * 32 * 56e3) / 1e6)


def test_used_share_counts_all_machines_of_part() -> None:
    found = forecast_needed(replace(ACTORS, environments=4000), COSTS, SIZE)
    for name in ("environments", "workers"):
        each = part(found, name)
        assert each.machines is not None and each.machines > 1
        assert each.used == pytest.approx(each.cores / (8 * each.machines))
        assert each.used <= FULL


@pytest.mark.parametrize("name", ["parameter server", "learners", "replay servers"])
def test_part_is_fully_used_at_its_breaks_at_environments(name: str) -> None:
    workload = replace(LEARNERS, environments=400)
    breaks_at = part(forecast_needed(workload, COSTS, WIDE), name).breaks_at
    at_it = forecast_needed(replace(workload, environments=4 * (breaks_at // 4)), COSTS, WIDE)
    used = max(each.used for each in at_it.parts if not each.grows)
    load = at_it.wanted_steps_per_second / at_it.steps_per_second
    assert part(at_it, name).used * load == pytest.approx(1.0, rel=0.05)
    assert used <= 1.0 + 1e-9


def test_parameter_server_breaks_at_most_connections() -> None:
    light = replace(ACTORS, parameters=10, rollout=10_000, rate=1e-3)
    server = part(forecast_needed(light, COSTS, WIDE), "parameter server")
    assert (server.breaks_at, server.because) == (4 * MOST_CONNECTIONS, "parameter server's connections")


@pytest.mark.parametrize(
    ("name", "size", "more"),
    [
        ("learners", WIDE, {"learners": 4}),
        ("replay servers", WIDE, {"replay": replace(REPLAY, shards=2)}),
        ("replay servers", SIZE, {"replay": replace(REPLAY, shards=2)}),
        ("parameter server", replace(SIZE, gigabits=5.0), {"shards": 2}),
    ],
)
def test_twice_the_processes_serve_twice_the_environments(name: str, size: MachineSize, more: dict[str, int]) -> None:
    usual = replace(LEARNERS, environments=4000, parameters=1_000_000 if name == "parameter server" else 10_000)
    one, two = (part(forecast_needed(each, COSTS, size), name) for each in (usual, replace(usual, **more)))  # type: ignore[arg-type]
    assert two.breaks_at == pytest.approx(2 * one.breaks_at, rel=0.02, abs=1)
    assert two.because == one.because
    assert one.breaks_at > 10, "a figure that is rounded to 0 proves no factor"


def test_needed_machines_have_enough_network() -> None:
    large = replace(ACTORS, environments=4000, observation_bytes=1e4)
    found = forecast_needed(large, COSTS, SIZE)
    for name in ("environments", "workers"):
        each = part(found, name)
        assert each.machines is not None
        assert max(each.in_gigabits, each.out_gigabits) <= FULL * SIZE.gigabits * each.machines + 1e-9, name
    assert (part(found, "workers").machines or 0) > 1


def test_needed_machines_have_enough_memory() -> None:
    small = replace(SIZE, gigabytes=2.0)
    assert forecast_on(ACTORS, COSTS, small, 1).enough
    found = forecast_needed(ACTORS, COSTS, small)
    assert found.machines > 1, "one machine has enough cores, but too little memory"
    for each in found.parts:
        assert each.machines is not None and each.gigabytes <= FULL_MEMORY * 2.0 * each.machines, each.name


def test_shards_write_checkpoints_in_parallel() -> None:
    large = replace(ACTORS, parameters=10**8)
    one, four = (forecast_on(replace(large, shards=shards), COSTS, SIZE, 1) for shards in (1, 4))
    assert (one.checkpoint_mb, four.checkpoint_mb) == (800.0, 800.0)
    assert (one.checkpoint_seconds, four.checkpoint_seconds) == pytest.approx((5.0, 1.25))
    assert (one.hold_ms, four.hold_ms) == pytest.approx((100.0, 25.0 + 2 * 0.2)), "and two round trips between shards"


def test_shards_needed_is_the_fewest_below_full() -> None:
    heavy = replace(ACTORS, parameters=5_000_000)
    wanted = 200.0
    shards = shards_needed(heavy, COSTS, WIDE, wanted)
    assert shards is not None and shards > 1
    for count, enough in ((shards, True), (shards - 1, False)):
        load = demand(replace(heavy, shards=count), COSTS, GRPC, 1.0, 1.0, 0.0)
        assert (wanted * load.pushes * load.exchange_shard <= FULL * 1e6) is enough
    assert shards_needed(heavy, COSTS, WIDE, 1e9) is None
