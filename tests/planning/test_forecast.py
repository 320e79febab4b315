"""Forecasts: units, scaling with the workload, and the part that breaks first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relaax.planning.advice import advice, breaks_at
from relaax.planning.costs import (
    GRPC,
    LARGE_MESSAGE_PARAMETERS,
    SHARED,
    Costs,
    MessageCost,
    crowding,
    exchange_us,
    process_slowdown,
    wake_time_us,
)
from relaax.planning.demand import checkpoint_bytes, demand, learner_mb, shard_mb, worker_mb
from relaax.planning.forecast import FULL, forecast_needed, forecast_on, staleness
from relaax.planning.workload import MachineSize, ReplayWorkload, Workload

SIZE = MachineSize(cores=8, gigabytes=32.0, gigabits=1.0, round_trip_ms=0.2)
COSTS = Costs(
    sources=("a test",),
    client=MessageCost(100.0, 10.0, 2.0),
    worker=MessageCost(100.0, 20.0, 2.0),
    act_share=0.5,
    wake_us=50.0,
    learner_us=1000.0,
    learner_us_per_item=10.0,
)
SMALL = Workload(
    environments=100,
    per_connection=4,
    rate=30.0,
    observation_bytes=100.0,
    parameters=10_000,
    multiplications=10_000.0,
    rollout=5,
    rollout_key="algorithm.episode_len",
)
APEX = replace(
    SMALL,
    rollout=100,
    rollout_key="algorithm.actor_interval",
    workers_push=False,
    learners=2,
    replay=ReplayWorkload(
        shards=1, table_bytes=1e9, insert_bytes=8e3, sample_bytes=56e3, batch=32, samples_per_insert=4.0
    ),
)


def part(forecast, name):
    return next(part for part in forecast.parts if part.name == name)


def test_twice_the_environments_need_twice_the_bytes_and_cores() -> None:
    one, two = (forecast_on(replace(SMALL, environments=n), COSTS, SIZE, 4) for n in (400, 800))
    assert one.enough and two.enough
    assert one.steps_per_second == pytest.approx(400 * 30.0)
    for name in ("environments", "workers", "parameter server"):
        first, second = part(one, name), part(two, name)
        for figure in ("in_gigabits", "out_gigabits"):
            assert getattr(second, figure) == pytest.approx(2 * getattr(first, figure)), (name, figure)
        assert second.cores == pytest.approx(2 * first.cores, rel=0.1), "the crowding of caches differs a little"
        assert second.breaks_at == pytest.approx(first.breaks_at, rel=0.1)
    assert two.push_bytes_per_second == pytest.approx(2 * one.push_bytes_per_second)


def test_each_rollout_sends_parameter_bytes_once() -> None:
    found = forecast_on(SMALL, COSTS, SIZE, 1)
    assert found.pushes_per_second == pytest.approx(100 * 30 / 4 / 5)
    assert found.push_bytes_per_second == pytest.approx(150 * (4 * 10_000 + 200))
    server = part(found, "parameter server")
    assert server.in_gigabits == pytest.approx(8e-9 * found.push_bytes_per_second)
    assert part(forecast_on(replace(SMALL, wire_bytes=2), COSTS, SIZE, 1), "parameter server").in_gigabits == (
        pytest.approx(8e-9 * 150 * (2 * 10_000 + 200))
    )


def test_exchange_cost_grows_with_parameters() -> None:
    assert exchange_us(677_747, GRPC) == pytest.approx(5600, rel=0.02)
    assert exchange_us(677_747, SHARED) == pytest.approx(1000, rel=0.02)
    assert exchange_us(4_611, GRPC) == pytest.approx(650, rel=0.02)
    assert exchange_us(4_611, SHARED) == pytest.approx(140, rel=0.02)
    beyond = exchange_us(LARGE_MESSAGE_PARAMETERS + 10**6, GRPC) - exchange_us(LARGE_MESSAGE_PARAMETERS, GRPC)
    assert beyond > 3 * (exchange_us(10**6, GRPC) - exchange_us(0, GRPC))


def test_crowding_grows_with_processes_per_core() -> None:
    assert [crowding(processes, 2) for processes in (1, 4, 10, 16, 1000)] == [0, 0, 0.5, 1, 1]
    assert COSTS.worker.us(4) == 180.0
    assert COSTS.worker.us(4, 1.0) == 360.0


def test_many_busy_processes_per_core_slow_each_other() -> None:
    assert [process_slowdown(processes, 2, 1.0) for processes in (1, 16, 32, 64)] == pytest.approx([1.0, 1.0, 1.2, 1.4])
    assert process_slowdown(64, 2, 0.5) == pytest.approx(1.2)
    crowd = forecast_on(replace(SMALL, environments=256, per_connection=1, rate=None), COSTS, SIZE, 1)
    half = forecast_on(replace(SMALL, environments=128, per_connection=1, rate=None), COSTS, SIZE, 1)
    assert crowd.steps_per_second < half.steps_per_second


def test_paced_processes_cost_more_until_cores_are_full() -> None:
    costs = replace(COSTS, paced=1.5)
    few, many = (forecast_on(replace(SMALL, environments=n), costs, SIZE, 1) for n in (4, 1000))
    lighter = forecast_on(replace(SMALL, environments=4), COSTS, SIZE, 1)
    assert part(few, "workers").cores > 1.3 * part(lighter, "workers").cores
    each = [part(found, "workers").cores / found.steps_per_second for found in (few, many)]
    assert each[1] / process_slowdown(500, SIZE.cores, 1.0) < each[0]
    full = replace(SMALL, environments=50_000)
    reached = forecast_on(full, costs, SIZE, 1).steps_per_second
    assert reached == pytest.approx(forecast_on(replace(full, rate=None), costs, SIZE, 1).steps_per_second, rel=0.01)


def test_wake_up_takes_longer_on_idle_processors() -> None:
    costs = replace(COSTS, paced_wake_us=1050.0)
    assert [wake_time_us(costs, sleeps) for sleeps in (0.0, 0.5, 1.0)] == [50.0, 550.0, 1050.0]
    assert wake_time_us(COSTS, 1.0) == 50.0
    few = replace(SMALL, environments=4)
    later = forecast_on(few, costs, SIZE, 1).act_p50_ms - forecast_on(few, COSTS, SIZE, 1).act_p50_ms
    assert later == pytest.approx(1.0, rel=0.1)
    free = replace(few, rate=None)
    assert forecast_on(free, costs, SIZE, 1) == forecast_on(free, COSTS, SIZE, 1)


def test_larger_rollouts_and_messages_reduce_demand() -> None:
    usual = demand(SMALL, COSTS, GRPC, 0.0, 0.0, 0.0)
    longer = demand(replace(SMALL, rollout=20), COSTS, GRPC, 0.0, 0.0, 0.0)
    rarer = demand(replace(SMALL, sync_interval=4), COSTS, GRPC, 0.0, 0.0, 0.0)
    assert longer.push_bytes == pytest.approx(usual.push_bytes / 4)
    assert longer.pushes * longer.exchange_shard == pytest.approx(usual.pushes * usual.exchange_shard / 4)
    assert rarer.push_bytes == usual.push_bytes
    assert rarer.worker_in_bytes < usual.worker_in_bytes / 2
    wide = demand(replace(SMALL, per_connection=16), COSTS, GRPC, 0.0, 0.0, 0.0)
    assert wide.worker / 16 < usual.worker / 4
    assert wide.pushes == usual.pushes


@pytest.mark.parametrize(
    ("workload", "size", "first"),
    [
        (replace(SMALL, parameters=5_000_000), SIZE, "parameter server's network"),
        (replace(SMALL, parameters=5_000_000), replace(SIZE, gigabits=400.0), "parameter server"),
        (replace(SMALL, environments=4000), SIZE, "parameter server"),
        (replace(APEX, replay=replace(APEX.replay, shards=16)), replace(SIZE, gigabits=400.0), "learners"),
        (replace(APEX, learners=200, parameters=100), SIZE, "replay servers' network"),
        (replace(APEX, learners=200, parameters=100), replace(SIZE, gigabits=400.0), "replay servers"),
    ],
)
def test_bottleneck_is_the_part_that_breaks_first(workload: Workload, size: MachineSize, first: str) -> None:
    found = forecast_needed(replace(workload, environments=workload.environments * 20), COSTS, size)
    assert found.bottleneck == first
    assert not found.enough or max(each.used for each in found.parts if not each.grows) <= 1.0


def test_one_machine_breaks_at_its_cores() -> None:
    found = forecast_on(replace(SMALL, environments=10_000), COSTS, SIZE, 1)
    assert (found.bottleneck, found.enough) == ("cores", False)
    assert sum(each.cores for each in found.parts) == pytest.approx(8.0, rel=0.02)
    assert found.pool_breaks_at is not None and found.pool_breaks_at < 10_000
    few = forecast_on(replace(SMALL, environments=found.pool_breaks_at // 2), COSTS, SIZE, 1)
    assert few.enough


def test_needed_machines_are_enough_and_filled_up_to_full() -> None:
    found = forecast_needed(replace(SMALL, environments=1200), COSTS, SIZE)
    assert found.enough and found.machines > 1 and found.bridge == GRPC
    for name in ("environments", "workers"):
        each = part(found, name)
        assert each.cores <= FULL * SIZE.cores * each.machines
        assert each.cores > FULL * SIZE.cores * (each.machines - 1), name
    assert forecast_needed(replace(SMALL, environments=8), COSTS, SIZE).machines == 1


def test_rlx_server_has_at_most_max_workers() -> None:
    assert forecast_on(replace(SMALL, environments=4 * 1000), COSTS, SIZE, 1).rlx_servers == 4
    assert forecast_on(SMALL, COSTS, SIZE, 1).rlx_servers == 1


def test_unpaced_environments_are_never_faster_than_alone() -> None:
    alone = forecast_on(replace(SMALL, environments=4, rate=None), COSTS, SIZE, 1)
    many = forecast_on(replace(SMALL, environments=4000, rate=None), COSTS, SIZE, 1)
    assert alone.steps_per_second <= alone.wanted_steps_per_second
    assert many.steps_per_second / 4000 < alone.steps_per_second / 4
    assert many.act_p99_ms > alone.act_p99_ms
    assert many.act_p99_ms > many.act_p50_ms


def test_staleness_counts_updates_of_other_writers() -> None:
    assert staleness(replace(SMALL, environments=4)) == 0
    assert staleness(SMALL) == 24
    assert staleness(replace(SMALL, sync_interval=3)) == 24 * 2 + 1
    assert staleness(APEX) == 1


def test_memory_grows_with_parameters() -> None:
    atari = replace(SMALL, environments=16, per_connection=8, parameters=677_747, observation_bytes=7056.0, rollout=20)
    assert worker_mb(atari, COSTS) == pytest.approx(35.5, rel=0.3), "study `speed`"
    assert worker_mb(replace(SMALL, parameters=9155), COSTS) == pytest.approx(14.5, rel=0.3)
    assert worker_mb(atari, replace(COSTS, worker_mb=99.0)) == 99.0
    assert checkpoint_bytes(atari) == 2 * 4 * 677_747
    assert checkpoint_bytes(replace(atari, slots=2, target=True)) == 4 * 4 * 677_747
    more = replace(atari, parameters=50_000_000)
    assert shard_mb(more, 1) > 10 * shard_mb(atari, 1)
    assert shard_mb(more, 4) < shard_mb(more, 1) / 3
    assert learner_mb(APEX) > learner_mb(replace(APEX, replay=None))


def test_samples_per_insert_limits_updates() -> None:
    found = forecast_on(APEX, COSTS, SIZE, 1)
    steps = found.steps_per_second
    assert found.pushes_per_second == pytest.approx(steps * 4 / 32)
    free = replace(APEX, replay=replace(APEX.replay, samples_per_insert=None))
    found = forecast_on(free, COSTS, SIZE, 1)
    assert found.pushes_per_second == pytest.approx(found.steps_per_second * 0.8 / 32)


def test_advice_is_given_only_if_part_breaks_and_helps() -> None:
    plenty = forecast_on(SMALL, COSTS, SIZE, 1)
    assert advice(SMALL, COSTS, SIZE, 1, "auto", plenty) == []
    many = replace(SMALL, environments=20_000)
    now = forecast_needed(many, COSTS, SIZE)
    found = advice(many, COSTS, SIZE, None, "auto", now)
    assert found and not now.enough
    settings = {
        "algorithm.episode_len=20": replace(many, rollout=20),
        "16 environments per connection": replace(many, per_connection=16),
    }
    assert found[0].setting in settings
    assert breaks_at(forecast_needed(settings[found[0].setting], COSTS, SIZE)) > 2 * breaks_at(now)
    assert len({each.setting for each in found}) == len(found)


def test_advice_names_max_staleness_if_gradients_are_stale() -> None:
    bound = replace(SMALL, max_staleness=4)
    (hint,) = advice(bound, COSTS, SIZE, 1, "auto", forecast_on(bound, COSTS, SIZE, 1))
    assert hint.setting == "algorithm.max_staleness"
    assert "24 updates behind" in hint.sentence
