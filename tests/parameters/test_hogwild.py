"""Workers that update the parameters themselves: same results, refusals, and the effect of a killed worker."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from relaax.algorithm_base import ConfigBase
from relaax.algorithm_base.config import Schedule
from relaax.algorithm_base.network import ActorCriticConfig
from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.nn.recycled_memory import own_memory
from relaax.optim.optimizers import AdaGrad, Adam, Momentum, OptimizerSpec, RMSProp
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import (
    EXPLOIT,
    FlatVector,
    ParameterServerError,
    ParameterServerUnavailable,
    ParameterServerUnusable,
    TrainingEnded,
)
from relaax.parameters.moments import Moments
from relaax.parameters.shard_client import SharedMemory
from relaax.server.command.configuration import check_bridge
from relaax.server.parameter_server.shard.model import ModelSpec
from relaax.server.parameter_server.shard.shard import DelayCompensation, Push, PushRefused, Shard
from relaax.transport import segments
from relaax.transport.local_socket import FailureKind, NoSharedMemory
from support.parameter_servers import (
    SIZE,
    Models,
    Running,
    fingerprint,
    gradient,
    parameter_client,
    registration,
    running,
)
from support.processes import Processes, wait_until
from support.shards import sharded

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="the system has no memory that can be handed over")

MODELS = Models(RMSProp(), learning_rate=0.1, end=1000)


@contextmanager
def hogwild(address: str | Sequence[str], size: int = SIZE, **options: Any) -> Iterator[ParameterClient]:
    """A registered client that has pulled."""
    parameters_client = ParameterClient(address, **options, transport="hogwild")
    try:
        parameters_client.register(registration(fingerprint=fingerprint(size=size)))
        parameters_client.pull()
        yield parameters_client
    finally:
        parameters_client.close()


def gradients(count: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((count, SIZE)).astype(np.float32)


CENTERED = RMSProp(centered=True)


@pytest.mark.parametrize(
    ("optimizer", "shards"),
    [(RMSProp(), 1), (RMSProp(), 3), (CENTERED, 1), (CENTERED, 3), (Momentum(), 1), (AdaGrad(), 1)],
)
def test_one_worker_gets_the_same_bytes_as_without_hogwild(optimizer: OptimizerSpec, shards: int) -> None:
    models = Models(optimizer, learning_rate=0.1, end=1000)
    with sharded(shards, models) as there, parameter_client(there.addresses) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        expected = [parameters_client.push(each, 10).pulled for each in gradients(5)]
    with sharded(shards, models) as here, hogwild(here.addresses) as parameters_client:
        found = [parameters_client.push(each, 10).pulled for each in gradients(5)]
        parameters = here.parameters
    for one, other in zip(found, expected, strict=True):
        assert one is not None and other is not None
        assert one.parameters.tobytes() == other.parameters.tobytes()
        assert (one.version, one.global_step) == (other.version, other.global_step)
        assert not one.parameters.flags.writeable
    assert found[-1] is not None and parameters.tobytes() == found[-1].parameters.tobytes()


def test_steps_metrics_statistics_and_the_end_are_unchanged() -> None:
    models = Models(RMSProp(), max_global_step=100, statistics={"s": 1})
    with running(models) as server, hogwild(server.address) as parameters_client, hogwild(server.address) as other:
        parameters_client.metrics.episode(5.0, 3)
        parameters_client.metrics.statistic("s", Moments.of(np.ones((4, 1))))
        pushed = parameters_client.push(gradient(1), 10)
        assert (pushed.version, pushed.global_step, pushed.staleness, pushed.discarded) == (1, 10, 0, None)
        assert pushed.pulled is not None and pushed.pulled.statistics["s"].count == 4
        assert other.push(gradient(1), 10).staleness == 1
        assert parameters_client.push(gradient(1), 10, want_parameters=False).pulled is None
        assert parameters_client.push(gradient(np.nan), 10).discarded == "not_finite"
        assert parameters_client.push(None, 10, withheld=True).discarded == "loss"
        status = server.core.status()
        assert (status.updates, status.discarded, status.episodes) == (3, 2, 1)
        assert status.global_step == 50
        with pytest.raises(TrainingEnded):
            parameters_client.push(gradient(1), 50)


def test_updates_of_others_are_seen_and_pulled_ones_stay() -> None:
    with (
        running(MODELS) as server,
        hogwild(server.address) as parameters_client,
        parameter_client(server.address) as ordinary,
    ):
        ordinary.register(registration())
        before = ordinary.pull()
        held = [parameters_client.push(gradient(1), 1).pulled for _ in range(6)]
        values = [pulled.parameters[0] for pulled in held if pulled is not None]
        assert values == sorted(set(values), reverse=True), "each pulled vector is still different"
        assert before.parameters[0] == 0
        after = ordinary.push(gradient(1), 1).pulled
        assert after is not None and after.parameters[0] < values[-1]
        assert parameters_client.pull().parameters[0] == after.parameters[0]


def test_a_checkpoint_has_all_updates_and_is_resumed(tmp_path: Path) -> None:
    with running(MODELS, tmp_path) as first:
        address = first.address
        with hogwild(address) as parameters_client:
            for each in gradients(5):
                last = parameters_client.push(each, 10).pulled
            first.stop()
            with running(MODELS, tmp_path, address=address) as second:
                assert last is not None and second.parameters.tobytes() == last.parameters.tobytes()
                pushed = parameters_client.push(gradient(1), 10)
                assert (pushed.discarded, pushed.global_step) == ("incarnation", 60)
                assert pushed.pulled is not None and pushed.pulled.parameters.tobytes() == last.parameters.tobytes()
                after = parameters_client.push(gradient(1), 10)
                assert (after.discarded, after.version) == (None, 6)
    with running(MODELS) as alone, parameter_client(alone.address) as ordinary:
        ordinary.register(registration())
        ordinary.pull()
        for each in gradients(5):
            ordinary.push(each, 10)
        expected = ordinary.push(gradient(1), 10).pulled
    assert expected is not None and after.pulled is not None
    assert after.pulled.parameters.tobytes() == expected.parameters.tobytes(), "the slot was restored too"


def lose(server: Running, parameters_client: ParameterClient) -> None:
    """Close the server's connections. The worker detects it with its next request."""
    for connection in list(server.server._local._sessions.values()):
        connection.close()
    parameters_client.pull()
    assert not parameters_client.shares_memory


def test_a_lost_connection_is_made_again() -> None:
    with (
        running(MODELS) as server,
        hogwild(server.address) as parameters_client,
        parameter_client(server.address) as ordinary,
    ):
        ordinary.register(registration())
        ordinary.pull()
        parameters_client.push(gradient(1), 1)
        lose(server, parameters_client)
        ordinary.push(gradient(1), 1)
        for version, staleness in ((3, 1), (4, 0)):
            pushed = parameters_client.push(gradient(1), 1)
            assert (pushed.version, pushed.staleness, pushed.discarded) == (version, staleness, None)
        assert parameters_client.shares_memory
        assert server.core.status().workers == 2, "it is still the same worker"
        lose(server, parameters_client)
        server.core.deregister(parameters_client._worker_id)
        pushed = parameters_client.push(gradient(1), 1)
        assert (pushed.discarded, pushed.version) == ("incarnation", 4), "it has registered again"
        assert parameters_client.push(gradient(1), 1).version == 5


def test_a_reconnection_without_memory_ends_the_worker() -> None:
    with running(MODELS) as server, hogwild(server.address) as parameters_client:
        for connection in list(server.server._local._sessions.values()):
            connection.close()
        # Applied: the worker detects the lost connection only with its next request.
        parameters_client.push(gradient(1), 1, want_parameters=False)
        server.server._local._offers.open = False
        server.core.deregister(parameters_client._worker_id)
        with pytest.raises(ParameterServerUnusable, match="bridge is hogwild: it offers none"):
            parameters_client.push(gradient(1), 1)


def test_a_temporary_failure_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(MODELS) as server, hogwild(server.address, unavailable_after=0.2) as parameters_client:
        lose(server, parameters_client)
        with monkeypatch.context() as scarce:
            scarce.setattr(segments, "make", no_memory)
            says = r"hogwild: the server has no shared memory left: out of descriptors \(not ready within 0.2 s\)"
            with pytest.raises(ParameterServerUnavailable, match=says):
                parameters_client.push(gradient(1), 1)
        assert server.version == 0
        memory = SharedMemory(parameters_client._links[0].transport._offer, parameters_client._worker_id, SIZE)
        with closing(memory):
            server.core.access.close("shards are away")
            with pytest.raises(NoSharedMemory, match="shards are away") as why:
                memory.live(
                    0,
                    pb.PullRequest(worker_id=parameters_client._worker_id, incarnation=parameters_client._incarnation),
                )
            assert why.value.kind is FailureKind.TEMPORARY
            server.core.access.open()
        assert parameters_client.push(gradient(1), 1).version == 1


@pytest.mark.parametrize(
    ("changes", "index", "says", "trouble"),
    [
        ({"incarnation": 1}, 0, "is not registered in this incarnation", FailureKind.UNKNOWN_WORKER),
        ({"worker_id": "1" * 32}, 0, "is not registered in this incarnation", FailureKind.UNKNOWN_WORKER),
        ({}, 2, "vector index must be below 2, not 2", FailureKind.TEMPORARY),
    ],
)
def test_live_vectors_are_for_workers_of_this_incarnation(
    changes: dict[str, Any], index: int, says: str, trouble: FailureKind
) -> None:
    with running(MODELS) as server, hogwild(server.address) as parameters_client:
        memory = parameters_client._links[0].memory
        assert memory is not None
        asker = {"worker_id": parameters_client._worker_id, "incarnation": parameters_client._incarnation, **changes}
        with pytest.raises(NoSharedMemory, match=says) as why:
            memory.live(index, pb.PullRequest(**asker))
        assert why.value.kind is trouble


def test_exploit_workers_get_no_writable_memory() -> None:
    with running(MODELS) as server, closing(ParameterClient(server.address, transport="hogwild")) as parameters_client:
        parameters_client.register(registration(purpose=EXPLOIT))
        assert parameters_client.pull().version == 0
        assert parameters_client.shares_memory
        assert parameters_client._hogwild is not None and not parameters_client._hogwild._live
        memory = parameters_client._links[0].memory
        assert memory is not None
        with pytest.raises(NoSharedMemory, match="an exploit worker may not change parameters") as why:
            memory.live(
                0, pb.PullRequest(worker_id=parameters_client._worker_id, incarnation=parameters_client._incarnation)
            )
        assert why.value.kind is FailureKind.PERMANENT


def no_memory(size: int, **_: Any) -> Any:
    raise OSError(errno.EMFILE, "out of descriptors")


def test_failed_sharing_changes_nothing_and_can_be_retried() -> None:
    shard = Shard(np.ones(SIZE, np.float32), RMSProp(), Schedule(0.1))
    made: list[FlatVector] = []

    def one_only(size: int) -> FlatVector:
        if made:
            no_memory(size)
        made.append(own_memory(size))
        return made[-1]

    with pytest.raises(OSError, match="out of descriptors"):
        shard.share(one_only)
    assert shard.pull()[1] is shard.pull()[1], "an unchanged snapshot is the same object"
    with pytest.raises(PushRefused, match="and needs shared memory"):
        shard.push(Push("0" * 32, 1, 0, None, 1, 1, 0, applied=True))
    live = shard.share(own_memory).vectors[0]
    live += 1
    assert shard.pull()[1].tolist() == [2.0] * SIZE
    assert shard.share(no_memory).vectors[0] is live


def test_a_gradient_may_have_strides() -> None:
    wide = np.arange(2 * SIZE, dtype=np.float32)
    with (
        running(MODELS) as one,
        running(MODELS) as other,
        hogwild(one.address) as parameters_client,
        hogwild(other.address) as two,
    ):
        parameters_client.push(wide[::2], 1)
        two.push(wide[::2].copy(), 1)
        assert one.parameters.tobytes() == other.parameters.tobytes()


def test_restored_shards_are_updated_in_new_memory(tmp_path: Path) -> None:
    with sharded(2, MODELS, tmp_path) as shards, hogwild(shards.addresses) as parameters_client:
        for each in gradients(3):
            parameters_client.push(each, 10)
        assert shards.save()
        saved = shards.parameters
        parameters_client.push(gradient(1), 10)
        shards.all[1].vanish()
        shards.restart(1)
        shards.wait_serving()
        pushed = parameters_client.push(gradient(1), 10)
        assert (pushed.discarded, pushed.version) == ("incarnation", 3)
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.parameters, saved)
        np.testing.assert_array_equal(shards.parameters, saved)
        after = parameters_client.push(gradient(1), 10)
        assert (after.discarded, after.version) == (None, 4)
        assert after.pulled is not None
        assert after.pulled.parameters.tobytes() == shards.parameters.tobytes() != saved.tobytes()


def test_concurrent_workers_lose_no_counts() -> None:
    failures: list[BaseException] = []

    def work(address: str) -> None:
        try:
            with hogwild(address) as parameters_client:
                for each in gradients(50):
                    parameters_client.push(each, 2)
        except BaseException as error:
            failures.append(error)

    with running(MODELS) as server:
        threads = [threading.Thread(target=work, args=(server.address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        counters = server.core.model.shard.counters
        assert (counters.version, counters.env_steps) == (200, 400)
        assert np.isfinite(server.parameters).all() and server.parameters.any()


def test_a_worker_killed_during_a_write_affects_no_other(processes: Processes, tmp_path: Path) -> None:
    size = 300_000
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    with running(MODELS, tmp_path) as server, hogwild(server.address, size) as parameters_client:
        child = processes.start(
            sys.executable,
            "-m",
            "support.hogwild_child",
            server.address,
            fingerprint(size=size),
            env={"PYTHONPATH": path},
        )
        child.wait_for_line("updating")
        seen = server.version
        wait_until(lambda: server.version > seen + 20, "the worker updates the parameters")
        child.kill()
        wait_until(lambda: server.server._local._offers.connected() == 1, "the shard has seen the end of the worker")
        counted = server.version
        pushed = parameters_client.push(np.ones(size, np.float32), 1)
        assert pushed.version == counted + 1
        assert pushed.pulled is not None
        parameters = pushed.pulled.parameters
        # Every element has all updates, or all but the last one, which was interrupted.
        assert np.isfinite(parameters).all()
        assert len(np.unique(parameters)) <= 2 + 64, "whole elements were written, in a few strides"
        assert parameters.max() < 0
    assert server.ended is not None and server.ended[1], "the last checkpoint is saved"


@dataclass(frozen=True)
class Compensating(Models):
    compensation: DelayCompensation | None = None

    def __call__(self, description: str) -> ModelSpec:
        spec = super().__call__(description)
        return ModelSpec(
            **{**{name: getattr(spec, name) for name in spec.__slots__}, "compensation": self.compensation}
        )


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (Models(Adam()), "its optimizer is not rms_prop, momentum or adagrad"),
        (Models(RMSProp(), max_staleness=3), r"it discards stale gradients \(algorithm.max_staleness\)"),
        (
            Compensating(RMSProp(), compensation=DelayCompensation(0.1, 2)),
            r"it corrects gradients \(algorithm.combine\)",
        ),
    ],
)
def test_models_that_hogwild_does_not_support_are_refused(models: Models, says: str) -> None:
    refused = pytest.raises(
        ParameterServerUnusable, match=f"does not support bridge hogwild: {says}; set bridge to auto"
    )
    with (
        running(models) as server,
        closing(ParameterClient(server.address, transport="hogwild")) as parameters_client,
        refused,
    ):
        parameters_client.register(registration())


def test_hogwild_updates_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(MODELS) as server, hogwild(server.address):
        assert f"parameter server {server.address}: updating its memory directly, without locks" in caplog.text


def test_hogwild_without_shared_memory_is_refused() -> None:
    with running(MODELS) as server:
        server.server._local._offers.open = False
        with (
            closing(ParameterClient(server.address, transport="hogwild")) as parameters_client,
            pytest.raises(ParameterServerUnusable, match="bridge is hogwild: it offers none; run both on one host"),
        ):
            parameters_client.register(registration())


def test_applied_pushes_without_shared_memory_are_refused() -> None:
    with running(MODELS) as server, parameter_client(server.address) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        common = parameters_client._common_request(1, True, False)
        common.applied = True
        with pytest.raises(ParameterServerError, match="and needs shared memory"):
            parameters_client._push(common, None)
        assert server.version == 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"combine": "delay_compensated"},
            "algorithm.combine: delay_compensated requires ordered gradients: set it to fifo",
        ),
        (
            {"sync": "all"},
            "algorithm.sync: all requires the mean of all gradients: set it to none",
        ),
        (
            {"max_staleness": 0},
            "algorithm.max_staleness: 0 discards stale gradients: remove the key",
        ),
        (
            {"optimizer": "adam"},
            "algorithm.optimizer: adam is not one of rms_prop, momentum, adagrad: set one",
        ),
    ],
)
def test_unsupported_configurations_are_refused(keys: dict[str, object], says: str) -> None:
    config = ActorCriticConfig(**{"path": "x", "max_global_step": 1, **keys})  # type: ignore[arg-type]
    check_bridge(RlxServerSection(), config)
    check_bridge(RlxServerSection(bridge="hogwild"), ConfigBase(path="x", max_global_step=1))  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=f"bridge: hogwild has no locks; {says}, or set bridge to auto"):
        check_bridge(RlxServerSection(bridge="hogwild"), config)
