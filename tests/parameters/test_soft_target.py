"""The soft target network that workers receive with the answers to their pushes, by gRPC and shared memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import TargetInterval
from relaax.optim.optimizers import RMSProp
from relaax.parameters.client import ParameterClient, Transport
from relaax.parameters.interfaces import FlatVector
from relaax.server.parameter_server.shard.shard import Push
from support.parameter_servers import SIZE, Models, gradient, parameter_client, registration
from support.shards import OneShard, Shards, sharded

pytestmark = pytest.mark.checks("relaax/server", "relaax/parameters")

both_ways = pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
TAU = 0.25
SOFT = Models(target=TargetInterval(updates=1, tau=TAU))
ONES = gradient(*[1.0] * SIZE)


@contextmanager
def joined(shards: Shards, **options: Any) -> Iterator[ParameterClient]:
    """A registered client."""
    with parameter_client(shards.addresses, **options) as parameters_client:
        parameters_client.register(registration())
        yield parameters_client


def target_in(one: OneShard) -> FlatVector:
    assert one.core.model is not None and one.core.model.shard.target is not None
    return one.core.model.shard.target.vector


def push_of_another_worker(one: OneShard, push_id: int) -> None:
    """Apply an update by ones to one shard only."""
    assert one.core.model is not None
    shard = one.core.model.shard
    shard.push(Push("other", push_id, shard.counters.version, np.ones(shard.size, np.float32), 0, 0, 0))


@both_ways
def test_actors_with_separate_learners_receive_no_target(transport: Transport, fetched: list[int]) -> None:
    with sharded(1, SOFT) as shards, parameter_client(shards.addresses, transport=transport) as parameters_client:
        parameters_client.register(replace(registration(), wants_target=False))
        assert parameters_client.pull().target is None
        pulled = parameters_client.push(ONES, env_steps=1).pulled
        assert pulled is not None
        assert pulled.target is None
        assert fetched == []


@both_ways
@pytest.mark.parametrize("count", [1, 3])
def test_each_push_returns_parameters_and_soft_target(transport: Transport, count: int, fetched: list[int]) -> None:
    with sharded(count, SOFT) as shards, joined(shards, transport=transport) as parameters_client:
        pulled = parameters_client.pull()
        assert (pulled.target is not None, sorted(fetched)) == (True, list(range(count)))
        held, expected, theta = [pulled.target], np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
        for number in range(1, 25):
            pushed = parameters_client.push(number * ONES, env_steps=1).pulled
            assert pushed is not None and pushed.target is not None
            theta = theta - number * ONES
            expected = expected + np.float32(TAU) * (theta - expected)
            np.testing.assert_array_equal(pushed.parameters, theta)
            np.testing.assert_array_equal(pushed.target, expected)
            assert not pushed.target.flags.writeable
            held = [*held[-2:], pushed.target]
            if number == 12:
                fetched.clear()
        assert fetched == [], "the answers contain the target network"
        assert parameters_client.pull().target is held[-1]
        np.testing.assert_array_equal(held[-1], expected)


def test_targets_of_three_updates_by_hand() -> None:
    with sharded(1, SOFT) as shards, joined(shards) as parameters_client:
        parameters_client.pull()
        targets = []
        for number in (4.0, 4.0, 8.0):  # the parameters are -4, -8 and -16
            pulled = parameters_client.push(number * ONES, env_steps=1).pulled
            assert pulled is not None and pulled.target is not None
            targets.append(pulled.target[0])
        assert targets == [-1.0, -2.75, -6.0625]


@both_ways
def test_soft_target_does_not_change_under_its_readers(transport: Transport) -> None:
    with sharded(1, SOFT) as shards, joined(shards, transport=transport) as one, joined(shards) as other:
        pulled = one.pull()
        other.pull()
        held: list[tuple[FlatVector, bytes]] = []
        for _ in range(10):
            assert pulled is not None and pulled.target is not None
            held.append((pulled.target, pulled.target.tobytes()))
            pulled = one.push(ONES, env_steps=1).pulled
            other.push(ONES, env_steps=1)
            held = held[-4:]
            for vector, then in held:
                assert vector.tobytes() == then


@both_ways
def test_parts_some_updates_apart_are_received_at_once(transport: Transport, fetched: list[int]) -> None:
    with sharded(3, SOFT) as shards, joined(shards, transport=transport) as parameters_client:
        parameters_client.pull()
        for push_id in (1, 2, 3):
            push_of_another_worker(shards.all[1], push_id)
        pulled = parameters_client.pull()
        assert fetched.count(0) == 2, "one more fetch, without a retry"
        np.testing.assert_array_equal(pulled.target, np.concatenate([target_in(one) for one in shards.all]))
        assert [one.version for one in shards.all] == [0, 3, 0]
        fetched.clear()
        for _ in range(3):
            pushed = parameters_client.push(ONES, env_steps=1).pulled
        assert pushed is not None
        np.testing.assert_array_equal(pushed.target, np.concatenate([target_in(one) for one in shards.all]))
        assert [one.version for one in shards.all] == [3, 6, 3]


@both_ways
@pytest.mark.parametrize("count", [1, 3])
def test_push_without_an_update_keeps_the_target(transport: Transport, count: int, fetched: list[int]) -> None:
    with sharded(count, SOFT) as shards, joined(shards, transport=transport) as parameters_client:
        pulled = parameters_client.pull()
        nothing = parameters_client.push(None, env_steps=5).pulled
        bad = parameters_client.push(gradient(float("nan")), env_steps=5)
        assert nothing is not None and bad.pulled is not None
        assert nothing.target is pulled.target
        assert bad.discarded == "not_finite"
        np.testing.assert_array_equal(bad.pulled.target, np.concatenate([target_in(one) for one in shards.all]))
        assert parameters_client.push(ONES, env_steps=1, want_parameters=False).pulled is None
        late = parameters_client.push(ONES, env_steps=1).pulled
        assert late is not None
        np.testing.assert_array_equal(late.target, np.concatenate([target_in(one) for one in shards.all]))


@both_ways
def test_all_workers_agree_with_the_soft_target(transport: Transport) -> None:
    failures: list[BaseException] = []

    def work(addresses: Sequence[str], number: int) -> None:
        random = np.random.default_rng(number)
        try:
            with parameter_client(addresses, transport=transport) as parameters_client:
                parameters_client.register(registration(session_id=str(number)))
                pulled = parameters_client.pull()
                for _ in range(20):
                    assert pulled is not None and pulled.target is not None
                    vector, then = pulled.target, pulled.target.tobytes()
                    pulled = parameters_client.push(random.standard_normal(SIZE).astype(np.float32), env_steps=1).pulled
                    assert vector.tobytes() == then
        except BaseException as error:
            failures.append(error)

    with sharded(3, SOFT) as shards:
        threads = [threading.Thread(target=work, args=(shards.addresses, n)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert [one.version for one in shards.all] == [60] * 3
        with joined(shards, transport=transport) as parameters_client:
            expected = np.concatenate([target_in(one) for one in shards.all])
            np.testing.assert_array_equal(parameters_client.pull().target, expected)


def test_hogwild_workers_receive_the_soft_target() -> None:
    models = Models(RMSProp(), learning_rate=0.1, target=TargetInterval(updates=1, tau=TAU))
    with sharded(2, models) as shards, joined(shards, transport="hogwild") as parameters_client:
        expected = parameters_client.pull().target
        assert expected is not None
        for _ in range(3):
            pushed = parameters_client.push(ONES, env_steps=1).pulled
            assert pushed is not None
            expected = expected + np.float32(TAU) * (pushed.parameters - expected)
            np.testing.assert_array_equal(pushed.target, expected)


@both_ways
def test_16_bit_wire_rounds_the_target_too(transport: Transport) -> None:
    options = {"transport": transport, "wire_precision": "bfloat16"}
    with sharded(1, SOFT) as shards, joined(shards, **options) as parameters_client:
        parameters_client.pull()
        for _ in range(5):
            pulled = parameters_client.push(ONES, env_steps=1).pulled
        assert pulled is not None and pulled.target is not None
        np.testing.assert_allclose(pulled.target, target_in(shards.leader), rtol=2**-8)
        assert (pulled.target == target_in(shards.leader)).all() == (transport == "shared_memory")


@both_ways
def test_killed_shard_restores_the_soft_target(transport: Transport, tmp_path: Path) -> None:
    with sharded(3, SOFT, tmp_path) as shards, joined(shards, transport=transport) as parameters_client:
        parameters_client.pull()
        push_of_another_worker(shards.all[2], 1)
        for _ in range(3):
            saved = parameters_client.push(ONES, env_steps=1).pulled
        assert saved is not None and saved.target is not None and shards.save()
        for _ in range(3):
            parameters_client.push(ONES, env_steps=1)
        shards.all[1].vanish()
        shards.restart(1)
        shards.wait_serving()
        pushed = parameters_client.push(ONES, env_steps=1)
        assert (pushed.discarded, pushed.pulled is not None) == ("incarnation", True)
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.target, saved.target)
        after = parameters_client.push(ONES, env_steps=1).pulled
        assert after is not None
        expected = saved.target + np.float32(TAU) * (saved.parameters - ONES - saved.target)
        np.testing.assert_array_equal(after.target, expected)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_soft_target_is_restored_to_another_number_of_shards(before: int, after: int, tmp_path: Path) -> None:
    with sharded(before, SOFT, tmp_path) as shards, joined(shards) as parameters_client:
        parameters_client.pull()
        for number in (1, 2, 3):
            pulled = parameters_client.push(gradient(*range(number, SIZE + number)), env_steps=4).pulled
        assert pulled is not None
        shards.stop()
    with sharded(after, SOFT, tmp_path) as shards, joined(shards) as parameters_client:
        again = parameters_client.pull()
        np.testing.assert_array_equal(again.target, pulled.target)
        np.testing.assert_array_equal(again.parameters, pulled.parameters)
