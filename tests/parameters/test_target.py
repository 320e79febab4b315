"""The target network that workers fetch from real shards, by gRPC and shared memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from relaax.algorithm_base import TargetInterval
from relaax.optim.optimizers import RMSProp
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.client import ParameterClient, Transport
from relaax.parameters.interfaces import EXPLOIT, ParameterServerUnavailable, TrainingEnded
from relaax.server.parameter_server.service.service import ParameterService
from relaax.server.parameter_server.shard.shard import Push, Shard
from relaax.server.parameter_server.shard.target import MAX_AHEAD, TargetNetwork
from support.parameter_servers import SIZE, Models, gradient, parameter_client, registration, running
from support.processes import wait_until
from support.shards import OneShard, Shards, sharded

both_ways = pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
FRAMES = TargetInterval(frames=10)
ONES = gradient(*[1.0] * SIZE)
WORKER = "0" * 32


@contextmanager
def joined(shards: Shards, **options: Any) -> Iterator[ParameterClient]:
    """A registered client."""
    with parameter_client(shards.addresses, **options) as parameters_client:
        parameters_client.register(registration())
        yield parameters_client


def shard_of(one: OneShard) -> Shard:
    assert one.core.model is not None
    return one.core.model.shard


@both_ways
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_target_is_a_copy_of_earlier_parameters(transport: Transport, count: int, fetched: list[int]) -> None:
    with sharded(count, Models(target=FRAMES)) as shards, joined(shards, transport=transport) as parameters_client:
        pulled = parameters_client.pull()
        assert pulled.target is not None
        assert (pulled.target.dtype, pulled.target.flags.writeable, pulled.frames) == (np.float32, False, 0)
        np.testing.assert_array_equal(pulled.target, np.zeros(SIZE))
        assert len(fetched) == count
        assert parameters_client.pull() is pulled
        first = parameters_client.push(ONES, env_steps=9).pulled
        assert first is not None and first.target is pulled.target
        assert (first.frames, len(fetched)) == (9, count)
        crossing = parameters_client.push(ONES, env_steps=9).pulled
        assert crossing is not None and crossing.target is not None
        # The other shards copy before their next update or, as here, when a pull names the new generation.
        np.testing.assert_array_equal(crossing.target, -2 * ONES)
        np.testing.assert_array_equal(crossing.target, crossing.parameters)
        assert (crossing.frames, len(fetched)) == (18, 2 * count)
        again = parameters_client.pull()
        assert again is crossing
        late = parameters_client.push(ONES, env_steps=0).pulled
        assert late is not None and late.target is crossing.target
        np.testing.assert_array_equal(late.target, -2 * ONES)
        np.testing.assert_array_equal(pulled.target, np.zeros(SIZE))
        assert len(fetched) == 2 * count


@both_ways
def test_new_frames_give_a_new_object_with_the_same_arrays(transport: Transport) -> None:
    models = Models(target=TargetInterval(frames=100), statistics={"a": 1})
    with sharded(2, models) as shards, joined(shards, transport=transport) as parameters_client:
        pulled = parameters_client.pull()
        pushed = parameters_client.push(None, env_steps=5).pulled
        assert pushed is not None and pushed is not pulled
        assert (pushed.frames, pushed.global_step, pushed.version) == (5, 5, 0)
        assert pushed.parameters is pulled.parameters
        assert pushed.statistics is pulled.statistics
        assert pushed.target is pulled.target
        assert parameters_client.pull() is pushed


@both_ways
def test_frames_are_steps_times_frame_skip_of_all_workers(transport: Transport) -> None:
    with sharded(2) as shards, parameter_client(shards.addresses, transport=transport) as one, joined(shards) as other:
        one.register(registration(frame_skip=4))
        one.pull()
        one.push(None, env_steps=5)
        other.pull()
        other.push(None, env_steps=2)
        pulled = one.pull()
        assert (pulled.frames, pulled.global_step, pulled.target) == (22, 7, None)


@both_ways
def test_a_push_without_parameters_fetches_no_target(transport: Transport, fetched: list[int]) -> None:
    with sharded(2, Models(target=FRAMES)) as shards, joined(shards, transport=transport) as parameters_client:
        first = parameters_client.pull()
        fetched.clear()
        for _ in range(3):
            assert parameters_client.push(ONES, env_steps=10, want_parameters=False).pulled is None
        assert fetched == []
        # Each push carries the generation of shard 0, so shard 1 copied before the second push and before the third.
        assert [copy.generation for one in shards.all if (copy := shard_of(one).target)] == [3, 2]
        pulled = parameters_client.pull()
        np.testing.assert_array_equal(pulled.target, -3 * ONES)
        assert sorted(fetched) == [0, 1]
        np.testing.assert_array_equal(first.target, np.zeros(SIZE))


@both_ways
def test_exploit_workers_get_no_target(transport: Transport, fetched: list[int]) -> None:
    with (
        sharded(2, Models(target=FRAMES)) as shards,
        joined(shards) as trains,
        parameter_client(shards.addresses, transport=transport) as parameters_client,
    ):
        parameters_client.register(registration(purpose=EXPLOIT))
        assert (parameters_client.pull().target, fetched) == (None, [])
        trains.pull()
        trains.push(ONES, env_steps=30)
        pulled = parameters_client.pull()
        assert (pulled.target, pulled.frames) == (None, 30)


@both_ways
def test_a_shard_that_advances_between_answers_is_retried(
    transport: Transport, monkeypatch: pytest.MonkeyPatch, fetched: list[int]
) -> None:
    with sharded(3, Models(target=FRAMES)) as shards, joined(shards, transport=transport) as parameters_client:
        parameters_client.pull()
        fetched.clear()
        pull, pushes = ParameterService.pull, iter(range(1, 3))

        def overtaken(service: ParameterService, request: pb.PullRequest) -> Any:
            if request.vector and service._core.position.index == 0 and (number := next(pushes, 0)):
                tested = shard_of(shards.leader)
                tested.push(Push("other", number, tested.counters.version, None, 10, 10, 0))
            return pull(service, request)

        monkeypatch.setattr(ParameterService, "pull", overtaken)
        pushed = parameters_client.push(ONES, env_steps=10).pulled
        assert pushed is not None
        np.testing.assert_array_equal(pushed.target, -ONES)
        assert [copy.generation for one in shards.all if (copy := shard_of(one).target)] == [3, 3, 3]
        assert parameters_client._target._held[0] == 3
        assert len(fetched) == 9
        assert parameters_client.pull().target is pushed.target


def test_a_false_generation_neither_spreads_nor_stops_training() -> None:
    with sharded(3, Models(target=FRAMES)) as shards, joined(shards, unavailable_after=0.3) as parameters_client:
        parameters_client.pull()
        shard_of(shards.all[1]).advance_target(2**52)
        targets = []
        for _ in range(MAX_AHEAD + 1):
            pulled = parameters_client.push(ONES, env_steps=10).pulled
            assert pulled is not None
            assert pulled.target is not None
            targets.append(pulled.target.tolist())
        middle = len(shard_of(shards.all[0]).pull()[1])
        assert [target[0] for target in targets] == [target[-1] for target in targets], "shards 0 and 2 agree"
        assert [target[0] for target in targets] == [float(-n) for n in range(1, MAX_AHEAD + 2)]
        assert [target[middle] for target in targets] == [0.0] * MAX_AHEAD + [float(-MAX_AHEAD - 1)]
        assert {copy.generation for one in shards.all if (copy := shard_of(one).target)} == {MAX_AHEAD + 1}


def test_a_shard_that_stays_behind_ends_the_bounded_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    with sharded(2, Models(target=FRAMES)) as shards, joined(shards, unavailable_after=0.3) as parameters_client:
        monkeypatch.setattr(TargetNetwork, "advance_to", lambda *_: None)
        shard_of(shards.leader).push(Push("other", 1, 0, None, 10, 10, 0))
        with pytest.raises(ParameterServerUnavailable, match=r"target networks of different generations: 1, 0 \(tried"):
            parameters_client.pull()


def test_the_end_of_training_is_reported_during_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    with sharded(1, Models(target=FRAMES, max_global_step=15)) as shards, joined(shards) as parameters_client:
        pull = ParameterService.pull

        def ended(service: ParameterService, request: pb.PullRequest) -> Any:
            if request.vector:
                shard_of(shards.leader).push(Push("other", 1, 0, None, 15, 15, 0))
            return pull(service, request)

        monkeypatch.setattr(ParameterService, "pull", ended)
        with pytest.raises(TrainingEnded, match="step 15"):
            parameters_client.pull()


@both_ways
@pytest.mark.parametrize(("count", "interval"), [(2, TargetInterval(updates=7)), (3, TargetInterval(frames=40))])
def test_all_workers_get_the_same_targets_while_all_push(
    transport: Transport, count: int, interval: TargetInterval
) -> None:
    workers, pushes = 4, 20
    seen: dict[int, set[bytes]] = {}
    failures: list[BaseException] = []
    lock = threading.Lock()

    def work(addresses: Sequence[str], number: int) -> None:
        random = np.random.default_rng(number)
        try:
            with parameter_client(addresses, transport=transport) as parameters_client:
                parameters_client.register(registration(session_id=str(number)))
                pulled, held = parameters_client.pull(), []
                for _ in range(pushes):
                    assert pulled.target is not None
                    generation = parameters_client._target._held[0]
                    assert generation is not None
                    held.append((generation, pulled.target, pulled.target.tobytes()))
                    assert generation >= held[0][0]
                    again = parameters_client.push(random.standard_normal(SIZE).astype(np.float32), env_steps=3).pulled
                    assert again is not None
                    assert (again.target is pulled.target) == (generation == parameters_client._target._held[0])
                    pulled = again
                for generation, vector, then in held:
                    assert vector.tobytes() == then, "a pulled target does not change"
                    with lock:
                        seen.setdefault(generation, set()).add(then)
        except BaseException as error:
            failures.append(error)

    with sharded(count, Models(target=interval)) as shards:
        threads = [threading.Thread(target=work, args=(shards.addresses, n)) for n in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert {generation: len(vectors) for generation, vectors in seen.items() if len(vectors) != 1} == {}
        assert len(seen) > 3
        leading = shard_of(shards.leader)
        passed = interval.counted(leading.counters.frames, leading.counters.version) // interval.length
        assert leading.target is not None and leading.target.generation == passed


@both_ways
def test_a_lost_shard_restores_the_target_of_the_checkpoint(
    transport: Transport, tmp_path: Path, fetched: list[int]
) -> None:
    with (
        sharded(2, Models(target=FRAMES), tmp_path) as shards,
        joined(shards, transport=transport) as parameters_client,
    ):
        parameters_client.pull()
        for _ in range(3):
            saved = parameters_client.push(ONES, env_steps=4).pulled
        assert saved is not None and shards.save()
        for _ in range(3):
            parameters_client.push(ONES, env_steps=10)
        shards.all[1].vanish()
        shards.restart(1)
        shards.wait_serving()
        fetched.clear()
        pushed = parameters_client.push(ONES, env_steps=1)
        assert pushed.discarded == "incarnation"
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.target, -3 * ONES)
        np.testing.assert_array_equal(pushed.pulled.target, saved.target)
        assert (pushed.pulled.frames, sorted(fetched)) == (13, [0, 1])
        assert parameters_client._target._held[0] == 1


@both_ways
def test_push_is_discarded_by_a_roll_back_before_the_fetch(
    transport: Transport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        sharded(2, Models(target=FRAMES), tmp_path) as shards,
        joined(shards, transport=transport) as parameters_client,
    ):
        parameters_client.pull()
        parameters_client.push(ONES, env_steps=1)
        assert shards.save()
        refreshed, once = parameters_client._target.refreshed, [True]

        def rolled_back(*arguments: Any) -> Any:
            if once:
                once.clear()
                shards.all[1].vanish()
                shards.restart(1)
                shards.wait_serving()
            return refreshed(*arguments)

        monkeypatch.setattr(parameters_client._target, "refreshed", rolled_back)
        pushed = parameters_client.push(ONES, env_steps=10)
        assert (pushed.discarded, pushed.global_step) == ("incarnation", 1)
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.parameters, -ONES)
        np.testing.assert_array_equal(pushed.pulled.target, np.zeros(SIZE))
        assert parameters_client.push(ONES, env_steps=10).discarded is None


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 2)])
def test_another_number_of_shards_has_the_same_target(before: int, after: int, tmp_path: Path) -> None:
    with sharded(before, Models(target=FRAMES), tmp_path) as shards, joined(shards) as parameters_client:
        parameters_client.pull()
        for number in (1, 2, 3):
            pulled = parameters_client.push(gradient(*range(number, SIZE + number)), env_steps=4).pulled
        assert pulled is not None
        parameters_client.push(ONES, env_steps=4, want_parameters=False)
        shards.stop()
    with sharded(after, Models(target=FRAMES), tmp_path) as shards, joined(shards) as parameters_client:
        again = parameters_client.pull()
        np.testing.assert_array_equal(again.target, pulled.target)
        assert not np.array_equal(again.parameters, again.target)
        assert (again.frames, parameters_client._target._held[0]) == (16, 1)


def test_segments_are_reused_while_two_vectors_are_held() -> None:
    with (
        running(Models(target=TargetInterval(updates=3))) as server,
        parameter_client(server.address, transport="shared_memory") as one,
        parameter_client(server.address, transport="auto") as other,
    ):
        held = []
        for parameters_client in (one, other):
            parameters_client.register(registration())
            held.append(parameters_client.pull().target)
        for _ in range(30):
            for parameters_client in (one, other):
                parameters_client.push(ONES, 1)
        assert one.shares_memory and other.shares_memory
        alive = len(server.core.segments.alive)
        assert alive <= 10, "each worker has two or three vectors and a first one, the shard has two"
        np.testing.assert_array_equal(held, np.zeros((2, SIZE)))
        late = one.pull()
        for connection in list(server.server._local._sessions.values()):
            connection.close()
        wait_until(lambda: server.server._local._offers.connected() == 0, "the shard has seen their end")
        for _ in range(12):
            other.push(ONES, 1)
        np.testing.assert_array_equal(late.target, -60 * ONES, "a worker whose connection was lost has what it had")


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_the_target_is_rounded_as_parameters_are(precision: str) -> None:
    fine = gradient(1 + 2**-20, 3)
    with sharded(2, Models(target=FRAMES)) as shards, joined(shards, wire_precision=precision) as parameters_client:
        parameters_client.pull()
        for one in shards.all:
            tested = shard_of(one)
            part = fine[tested.start : tested.start + tested.size]
            tested.push(Push("other", 1, 0, part, 10, 10, 0, target_generation=1))
        pulled = parameters_client.pull()
        np.testing.assert_array_equal(pulled.parameters, -gradient(1, 3))
        np.testing.assert_array_equal(pulled.target, -gradient(1, 3))


def test_hogwild_workers_get_the_target() -> None:
    models = Models(RMSProp(), learning_rate=0.1, target=TargetInterval(updates=2))
    with sharded(2, models) as shards, joined(shards, transport="hogwild") as parameters_client:
        parameters_client.pull()
        targets, parameters = [], []
        for _ in range(5):
            pulled = parameters_client.push(ONES, env_steps=1).pulled
            assert pulled is not None and pulled.target is not None
            targets.append(pulled.target.copy())
            parameters.append(pulled.parameters.copy())
        np.testing.assert_array_equal(
            targets, [np.zeros(SIZE), parameters[1], parameters[1], parameters[3], parameters[3]]
        )


def test_a_pull_names_the_requested_vector() -> None:
    with running(Models(target=FRAMES)) as server, grpc.insecure_channel(server.address) as channel:
        stub: Any = pb_grpc.ParameterServerServiceStub(channel)

        def pull(**changes: Any) -> pb.PullResponse:
            request = {"worker_id": WORKER, "incarnation": server.core.incarnation, **changes}
            return stub.Pull(pb.PullRequest(**request))

        def refused(**changes: Any) -> tuple[grpc.StatusCode, str]:
            with pytest.raises(grpc.RpcError) as raised:
                pull(**changes)
            return raised.value.code(), raised.value.details()

        assert pull(vector="target").incarnation_ended
        fingerprint = registration().fingerprint
        stub.Register(pb.RegisterRequest(worker_id=WORKER, environments=1, role="ROLE_TRAIN", fingerprint=fingerprint))
        assert pull().HasField("target_generation")
        for frames in (10, 10):
            tested = server.core.model.shard
            tested.push(Push("other", tested.counters.version + 1, tested.counters.version, ONES, frames, frames, 0))
        tested.push(Push("other", 3, 2, ONES, 0, 0, 0))
        answer = pull(vector="target", target_generation=9)
        assert (answer.version, answer.target_generation, answer.frames) == (2, 2, 20), "shard 0 uses its own counters"
        assert answer.parameters == (-2 * ONES).tobytes()
        assert pull(vector="target", have_version=1).parameters == answer.parameters
        unmodified = pull(vector="target", have_version=2)
        assert (unmodified.not_modified, unmodified.version, unmodified.parameters) == (True, 2, b"")
        assert (pull().version, pull().target_generation) == (3, 2)
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        assert refused(vector="targets") == (invalid, "the model has no vector 'targets'")
        code, details = refused(target_generation=2**60)
        assert (code, details[:17]) == (invalid, "target_generation")
        with pytest.raises(grpc.RpcError):
            stub.Push(pb.PushRequest(worker_id=WORKER, target_generation=2**60))
