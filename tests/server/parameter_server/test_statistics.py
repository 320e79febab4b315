"""Statistics from workers to the shard, into checkpoints, and back, over real gRPC."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import grpc
import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.interfaces import ParameterServerError
from relaax.parameters.moments import Moments
from relaax.server.parameter_server.shard.model import ModelRefused
from relaax.transport.grpc_options import MAX_STATISTICS
from support.cutting_proxy import CuttingProxy
from support.parameter_servers import Models, fingerprint, gradient, parameter_client, registration, running
from support.processes import wait_until

ONE = Models(statistics={"a": 1})
WORKER = "0" * 32


def moments(*samples: float) -> Moments:
    return Moments.of([[sample] for sample in samples])


def as_bytes(statistics: Mapping[str, Moments]) -> dict[str, tuple[float, bytes, bytes]]:
    return {name: (m.count, m.mean.tobytes(), m.m2.tobytes()) for name, m in statistics.items()}


def test_pushes_and_pulls_carry_statistics() -> None:
    with running(ONE) as server, parameter_client(server.address) as client, parameter_client(server.address) as other:
        for each in (client, other):
            each.register(registration())
            assert each.pull().statistics["a"].count == 0
        client.metrics.statistic("a", moments(1))
        client.metrics.statistic("a", moments(3))
        pushed = client.push(gradient(1), env_steps=2)
        assert pushed.pulled is not None
        assert as_bytes(pushed.pulled.statistics) == as_bytes({"a": moments(1, 3)})
        assert as_bytes(other.pull().statistics) == as_bytes({"a": moments(1, 3)})
        other.metrics.statistic("a", moments(8))
        assert other.push(gradient(1), env_steps=1, want_parameters=False).pulled is None
        merged = client.pull().statistics["a"]
        assert (merged.count, merged.mean.tolist(), merged.m2.tolist()) == (3, [4], [26])
        client.push(gradient(1), env_steps=1)
        assert client.pull().statistics["a"].count == 3


def test_statistics_of_many_workers_equal_one_pass() -> None:
    workers, pushes = 4, 12
    rng = np.random.default_rng(7)
    samples = rng.normal([5.0, 0.0, -300.0], [0.1, 1.0, 50.0], (3000, 3))
    parts = np.split(samples, np.sort(rng.integers(0, len(samples) + 1, workers * pushes - 1)))
    failures: list[BaseException] = []

    def work(address: str, number: int) -> None:
        try:
            with parameter_client(address) as client:
                client.register(registration(session_id=str(number)))
                client.pull()
                for part in parts[number::workers]:
                    for row in np.array_split(part, 3):
                        client.metrics.statistic("a", Moments.of(row))
                    client.push(gradient(1), env_steps=len(part))
        except BaseException as error:
            failures.append(error)

    with running(Models(statistics={"a": 3})) as server:
        threads = [threading.Thread(target=work, args=(server.address, number)) for number in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        merged, one_pass = server.statistics["a"], Moments.of(samples)
        assert merged.count == server.core.global_step == 3000
        np.testing.assert_allclose(merged.mean, one_pass.mean, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(merged.m2, one_pass.m2, rtol=1e-12)


def test_push_with_a_lost_answer_counts_once() -> None:
    with running(ONE) as server, CuttingProxy(server.address) as proxy, parameter_client(proxy.address) as client:
        client.register(registration())
        client.pull()
        client.metrics.statistic("a", moments(1, 3))
        proxy.drop_answers()
        pushed = []
        thread = threading.Thread(target=lambda: pushed.append(client.push(gradient(1), env_steps=2)))
        thread.start()
        wait_until(lambda: server.version == 1, "the push arrives")
        proxy.cut()
        thread.join(60)
        assert as_bytes(server.statistics) == as_bytes({"a": moments(1, 3)})
        assert [as_bytes(p.pulled.statistics) for p in pushed] == [as_bytes({"a": moments(1, 3)})]


def test_statistics_of_a_discarded_gradient_are_pulled() -> None:
    models = Models(max_staleness=0, statistics={"a": 1})
    with running(models) as server, parameter_client(server.address) as slow, parameter_client(server.address) as fast:
        for client in (slow, fast):
            client.register(registration())
            client.pull()
        before = fast.push(gradient(1), env_steps=1).pulled
        slow.metrics.statistic("a", moments(1, 3))
        pushed = slow.push(gradient(1), env_steps=1)
        assert pushed.discarded == "stale"
        assert pushed.pulled is not None
        assert pushed.pulled.statistics["a"].count == 2
        after = fast.pull()
        assert before is not None
        assert (after.version, after.statistics["a"].count) == (before.version, 2)
        assert after.parameters is before.parameters
        assert fast.pull() is after
        slow.metrics.statistic("a", moments(8))
        assert slow.push(gradient(np.nan), env_steps=1).discarded == "not_finite"
        assert fast.pull().statistics["a"].count == 3


def test_new_incarnation_gets_statistics_of_the_lost_push() -> None:
    with running(ONE) as first:
        address = first.address
        with parameter_client(address) as client:
            client.register(registration(session_id="s"))
            client.pull()
            client.metrics.statistic("a", moments(100))
            client.push(gradient(1), env_steps=1)
            first.stop()
            with running(ONE, address=address) as second:
                client.metrics.statistic("a", moments(1, 3))
                pushed = client.push(gradient(1), env_steps=2, want_parameters=False)
                assert (pushed.discarded, pushed.global_step) == ("incarnation", 2)
                assert pushed.pulled is not None
                assert as_bytes(pushed.pulled.statistics) == as_bytes({"a": moments(1, 3)})
                client.push(gradient(1), env_steps=1)
                assert second.statistics["a"].count == 2


def test_statistics_are_restored_exactly_from_a_checkpoint(tmp_path: Path) -> None:
    models = Models(statistics={"a": 3, "b/c": 1})
    rng = np.random.default_rng(3)
    with running(models, tmp_path) as first, parameter_client(first.address) as client:
        client.register(registration())
        for _ in range(5):
            client.metrics.statistic("a", Moments.of(rng.normal(size=(7, 3))))
            client.metrics.statistic("b/c", Moments.of(rng.normal(size=(2, 1))))
            client.push(None, env_steps=1)
        kept = as_bytes(first.statistics)
        assert {name: count for name, (count, _, _) in kept.items()} == {"a": 35, "b/c": 10}
    with running(models, tmp_path) as second, parameter_client(second.address) as client:
        client.register(registration())
        assert as_bytes(second.statistics) == kept
        assert as_bytes(client.pull().statistics) == kept
        # A change of the statistics alone is saved too.
        client.metrics.statistic("b/c", moments(1))
        client.push(None, env_steps=0)
    with running(models, tmp_path) as third:
        assert third.statistics["b/c"].count == 11
        assert as_bytes(third.statistics)["a"] == kept["a"]
    assert len(CheckpointManager(LocalStore(tmp_path)).published()) == 2


def test_push_in_the_checkpoint_is_not_merged_again(tmp_path: Path) -> None:
    with (
        running(ONE, tmp_path) as first,
        CuttingProxy(first.address) as proxy,
        parameter_client(proxy.address) as client,
    ):
        client.register(registration())
        client.pull()
        client.metrics.statistic("a", moments(1, 3))
        proxy.drop_answers()
        pushed = []
        thread = threading.Thread(target=lambda: pushed.append(client.push(gradient(1), env_steps=5)))
        thread.start()
        wait_until(lambda: first.version == 1, "the push arrives")
        first.stop()
        with running(ONE, tmp_path, address=first.address) as second:
            proxy.cut()
            thread.join(60)
            assert [p.discarded for p in pushed] == [None]
            assert as_bytes(second.statistics) == as_bytes({"a": moments(1, 3)})


def test_checkpoint_with_huge_rewards_can_be_resumed(tmp_path: Path) -> None:
    with running(ONE, tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.metrics.statistic("a", moments(1, 3))
        client.metrics.episode(1.0, 1)
        client.push(None, env_steps=1)
    manager = CheckpointManager(LocalStore(tmp_path))
    checkpoint = manager.restore()
    assert checkpoint is not None
    part = {**checkpoint.parts["shard-0"], "statistics/a/m2": np.array([1.7e308])}
    manifest = {**checkpoint.manifest, "returns": {"episodes": 6, "last": [1.7e308] * 6, "best": None}}
    manager.save(2, {"shard-0": part}, manifest)
    with running(ONE, tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.metrics.statistic("a", moments(1, 3))
        client.metrics.episode(5.0, 1)
        client.push(None, env_steps=1)
        status = server.core.status()
        assert (status.episodes, status.mean_return_100, status.global_step) == (7, 5.0, 2)
        assert as_bytes(server.statistics) == as_bytes({"a": moments(1, 3)})
    saved = CheckpointManager(LocalStore(tmp_path)).restore()
    assert saved is not None
    assert saved.manifest["returns"] == {"episodes": 7, "last": [5.0], "best": None}


def test_extreme_samples_do_not_spoil_shared_statistics(tmp_path: Path) -> None:
    with (
        running(ONE, tmp_path) as server,
        parameter_client(server.address) as hostile,
        parameter_client(server.address) as honest,
    ):
        for client in (hostile, honest):
            client.register(registration())
            client.pull()
        for sign in (1, -1):
            hostile.metrics.statistic("a", Moments(5.0, np.array([sign * 1e153]), np.array([1e307])))
            hostile.push(None, env_steps=1)
        honest.metrics.statistic("a", moments(1, 3))
        pushed = honest.push(gradient(1), env_steps=2).pulled
        assert pushed is not None
        assert as_bytes(pushed.statistics) == as_bytes({"a": moments(1, 3)})
        assert server.core.status().dropped_samples == 2


def test_checkpoint_with_other_statistics_is_refused(tmp_path: Path) -> None:
    with running(directory=tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.push(None, env_steps=1)
    checkpoint = CheckpointManager(LocalStore(tmp_path)).restore()
    assert checkpoint is not None
    assert set(checkpoint.parts["shard-0"]) == {"parameters"}
    with (
        running(ONE) as fresh,
        pytest.raises(ModelRefused, match=r"statistics are \{'a': 1\}, but \{\} in the checkpoint;"),
    ):
        fresh.core.resume(checkpoint, fingerprint())
    with running(directory=tmp_path) as again:
        assert again.core.global_step == 1


def test_longest_statistics_and_vector_fit_a_message() -> None:
    with running(Models(statistics={"a": MAX_STATISTICS})) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.pull()
        client.metrics.statistic("a", Moments.of(np.ones((2, MAX_STATISTICS))))
        for number in range(5000):
            client.metrics.episode(number + 0.5, 100_000)
        pushed = client.push(gradient(1), env_steps=1)
        assert pushed.pulled is not None
        assert pushed.pulled.statistics["a"].mean.tolist() == [1.0] * MAX_STATISTICS


def message(
    name: str = "a", count: float = 1, mean: tuple[float, ...] = (0.5,), m2: tuple[float, ...] = (0.0,)
) -> pb.Moments:
    return pb.Moments(name=name, count=count, mean=np.array(mean, float).tobytes(), m2=np.array(m2, float).tobytes())


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([message("b")], "unknown statistic 'b'"),
        ([message("x" * 10_000)], f"unknown statistic '{'x' * 64}'"),
        ([message(mean=(1, 2), m2=(0, 0))], "statistic 'a' has samples of 1 numbers, not 2"),
        ([message(m2=(0, 0))], "statistic 'a': mean and m2 must have the same shape [D], not (1,) and (2,)"),
        ([pb.Moments(name="a", mean=bytes(3), m2=bytes(8))], "must have a multiple of 8 bytes, not 3"),
        ([pb.Moments(name="a")], "has samples of 1 numbers, not 0"),
        ([message(mean=(np.nan,))], "statistic 'a': the mean or the sum of squared differences is not finite"),
        ([message(m2=(np.inf,))], "is not finite"),
        ([message(count=np.nan)], "the count must be finite and at least 0, not nan"),
        ([message(count=-1)], "the count must be finite and at least 0, not -1.0"),
        ([message(m2=(-1,))], "statistic 'a': a sum of squared differences must be at least 0, not -1.0"),
        ([message(), message()], "statistic 'a' is repeated in one message"),
    ],
)
def test_invalid_moments_are_refused_and_change_nothing(messages: list[pb.Moments], sentence: str) -> None:
    with running(ONE) as server, grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        incarnation = stub.Register(
            pb.RegisterRequest(worker_id=WORKER, environments=1, fingerprint=fingerprint(), role=pb.ROLE_TRAIN)
        ).incarnation
        push = pb.PushRequest(
            worker_id=WORKER, incarnation=incarnation, push_id=1, env_steps=1, gradient=gradient(1).tobytes()
        )
        wrong = pb.PushRequest()
        wrong.CopyFrom(push)
        wrong.statistics.extend(messages)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Push(wrong)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert sentence in refused.value.details()
        assert (server.version, server.core.global_step, server.statistics["a"].count) == (0, 0, 0)
        assert stub.Push(push).version == 1


def test_client_raises_the_error_of_the_server() -> None:
    with running(ONE) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.metrics.statistic("b", moments(1))
        with pytest.raises(ParameterServerError, match="unknown statistic 'b'"):
            client.push(None, env_steps=1)
