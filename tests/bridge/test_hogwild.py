"""Workers that update the parameters by themselves: what is as always, what is refused, what a killed one leaves."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from relaax.algorithm_base import ConfigBase
from relaax.bridge import BridgeError, Moments, TrainingEnded
from relaax.bridge.hogwild import HogwildBridge
from relaax.bridge.segments import SUPPORTED
from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.server.configured import check_bridge
from relaax.server.parameter_server.combining import Average, CombinerSpec, Fifo
from relaax.server.parameter_server.model import ModelSpec
from relaax.tf.optimizers import AdaGrad, Adam, Momentum, OptimizerSpec, RMSProp
from support.parameter_servers import SIZE, Models, bridge_to, fingerprint, gradient, registration, running
from support.processes import Processes, wait_until
from support.shards import sharded

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the system has no memory that can be handed over")

MODELS = Models(RMSProp(), learning_rate=0.1, end=1000)


@contextmanager
def hogwild(address: str | Sequence[str], size: int = SIZE) -> Iterator[HogwildBridge]:
    """A registered bridge that has pulled."""
    bridge = HogwildBridge(address)
    try:
        bridge.register(registration(fingerprint=fingerprint(size=size)))
        bridge.pull()
        yield bridge
    finally:
        bridge.close()


def gradients(count: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((count, SIZE)).astype(np.float32)


@pytest.mark.parametrize(("optimizer", "shards"), [(RMSProp(), 1), (RMSProp(), 3), (Momentum(), 1), (AdaGrad(), 1)])
def test_one_worker_learns_to_the_byte_what_it_learns_otherwise(optimizer: OptimizerSpec, shards: int) -> None:
    models = Models(optimizer, learning_rate=0.1, end=1000)
    with sharded(shards, models) as there, bridge_to(there.addresses) as bridge:
        bridge.register(registration())
        bridge.pull()
        expected = [bridge.push(each, 10).pulled for each in gradients(5)]
    with sharded(shards, models) as here, hogwild(here.addresses) as bridge:
        found = [bridge.push(each, 10).pulled for each in gradients(5)]
        parameters = here.parameters
    for one, other in zip(found, expected, strict=True):
        assert one is not None and other is not None
        assert one.parameters.tobytes() == other.parameters.tobytes()
        assert (one.version, one.global_step) == (other.version, other.global_step)
        assert not one.parameters.flags.writeable
    assert found[-1] is not None and parameters.tobytes() == found[-1].parameters.tobytes()


def test_steps_metrics_statistics_and_the_end_are_as_always() -> None:
    models = Models(RMSProp(), max_global_step=100, statistics={"s": 1})
    with running(models) as server, hogwild(server.address) as bridge, hogwild(server.address) as other:
        bridge.episode(5.0, 3)
        bridge.statistic("s", Moments.of(np.ones((4, 1))))
        pushed = bridge.push(gradient(1), 10)
        assert (pushed.version, pushed.global_step, pushed.staleness, pushed.discarded) == (1, 10, 0, None)
        assert pushed.pulled is not None and pushed.pulled.statistics["s"].count == 4
        assert other.push(gradient(1), 10).staleness == 1
        assert bridge.push(gradient(1), 10, want_parameters=False).pulled is None
        assert bridge.push(gradient(np.nan), 10).discarded == "not_finite"
        assert bridge.push(None, 10, withheld=True).discarded == "loss"
        status = server.core.status()
        assert (status.counters.version, status.counters.discarded, status.episodes) == (3, 2, 1)
        assert status.counters.env_steps == 50
        with pytest.raises(TrainingEnded):
            bridge.push(gradient(1), 50)


def test_what_others_do_meanwhile_is_seen_and_what_was_pulled_stays() -> None:
    with running(MODELS) as server, hogwild(server.address) as bridge, bridge_to(server.address) as ordinary:
        ordinary.register(registration())
        before = ordinary.pull()
        held = [bridge.push(gradient(1), 1).pulled for _ in range(6)]
        values = [pulled.parameters[0] for pulled in held if pulled is not None]
        assert values == sorted(set(values), reverse=True), "each is another one still"
        assert before.parameters[0] == 0
        after = ordinary.push(gradient(1), 1).pulled
        assert after is not None and after.parameters[0] < values[-1]
        assert bridge.pull().parameters[0] == after.parameters[0]


def test_a_checkpoint_has_it_all_and_another_life_goes_on(tmp_path: Path) -> None:
    with running(MODELS, tmp_path) as first:
        address = first.address
        with hogwild(address) as bridge:
            for each in gradients(5):
                last = bridge.push(each, 10).pulled
            first.stop()
            with running(MODELS, tmp_path, address=address) as second:
                assert last is not None and second.parameters.tobytes() == last.parameters.tobytes()
                pushed = bridge.push(gradient(1), 10)
                assert (pushed.discarded, pushed.global_step) == ("incarnation", 60)
                assert pushed.pulled is not None and pushed.pulled.parameters.tobytes() == last.parameters.tobytes()
                after = bridge.push(gradient(1), 10)
                assert (after.discarded, after.version) == (None, 6)
    with running(MODELS) as alone, bridge_to(alone.address) as ordinary:
        ordinary.register(registration())
        ordinary.pull()
        for each in gradients(5):
            ordinary.push(each, 10)
        expected = ordinary.push(gradient(1), 10).pulled
    assert expected is not None and after.pulled is not None
    assert after.pulled.parameters.tobytes() == expected.parameters.tobytes(), "the slot was restored too"


def test_a_connection_that_is_lost_is_made_anew() -> None:
    with running(MODELS) as server, hogwild(server.address) as bridge:
        bridge.push(gradient(1), 1)
        for connection in list(server.server._local._connections.values()):
            connection.close()
        for version in (2, 3):
            pushed = bridge.push(gradient(1), 1)
            assert (pushed.version, pushed.discarded) == (version, None)
        assert bridge.shares_memory
        server.server._local._offers.open = False
        for connection in list(server.server._local._connections.values()):
            connection.close()
        bridge.push(gradient(1), 1, want_parameters=False)  # it was applied before anybody could know
        with pytest.raises(BridgeError, match="bridge is hogwild: it offers none"):
            bridge.push(gradient(1), 1)


def test_many_at_once_lose_no_count() -> None:
    failures: list[BaseException] = []

    def work(address: str) -> None:
        try:
            with hogwild(address) as bridge:
                for each in gradients(50):
                    bridge.push(each, 2)
        except BaseException as error:
            failures.append(error)

    with running(MODELS) as server:
        threads = [threading.Thread(target=work, args=(server.address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        counters = server.core.status().counters
        assert (counters.version, counters.env_steps) == (200, 400)
        assert np.isfinite(server.parameters).all() and server.parameters.any()


def test_a_worker_that_is_killed_in_the_middle_of_a_write_harms_nobody(processes: Processes, tmp_path: Path) -> None:
    size = 300_000
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    with running(MODELS, tmp_path) as server, hogwild(server.address, size) as bridge:
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
        wait_until(lambda: server.version > seen + 20, "it updates")
        child.kill()
        wait_until(lambda: server.server._local._offers.connected() == 1, "the shard has seen its end")
        counted = server.version
        pushed = bridge.push(np.ones(size, np.float32), 1)
        assert pushed.version == counted + 1
        assert pushed.pulled is not None
        parameters = pushed.pulled.parameters
        # Every element has all of its updates, or all but what the last one had not come to.
        assert np.isfinite(parameters).all()
        assert len(np.unique(parameters)) <= 2 + 64, "whole elements were written, in a few strides"
        assert parameters.max() < 0
    assert server.ended is not None and server.ended[1], "the last checkpoint is safe"


@dataclass(frozen=True)
class Combining(Models):
    combine: CombinerSpec = Fifo()  # noqa: RUF009 - it is a value

    def __call__(self, description: str) -> ModelSpec:
        spec = super().__call__(description)
        return ModelSpec(**{**{name: getattr(spec, name) for name in spec.__slots__}, "combine": self.combine})


@pytest.mark.parametrize(
    ("models", "says"),
    [
        (Models(Adam()), "its optimizer is none of rms_prop, momentum and adagrad"),
        (Models(RMSProp(), max_staleness=3), r"it discards stale gradients \(algorithm.max_staleness\)"),
        (Combining(RMSProp(), combine=Average(2)), r"it combines gradients \(algorithm.combine\)"),
    ],
)
def test_what_a_shard_could_not_keep_is_refused(models: Models, says: str) -> None:
    with running(models) as server, pytest.raises(BridgeError, match=f"cannot do with bridge hogwild: {says}"):
        HogwildBridge(server.address).register(registration())


def test_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running(MODELS) as server, hogwild(server.address):
        assert f"parameter server {server.address}: updated in that memory, without locks" in caplog.text


def test_it_is_never_by_grpc() -> None:
    with running(MODELS) as server:
        server.server._local._offers.open = False
        with pytest.raises(BridgeError, match="bridge is hogwild: it offers none; run both on one host"):
            HogwildBridge(server.address).register(registration())


def test_nobody_says_that_he_has_updated_what_is_not_his() -> None:
    with running(MODELS) as server, bridge_to(server.address) as bridge:
        bridge.register(registration())
        bridge.pull()
        common = bridge._common(1, True, False)
        common.applied = True
        with pytest.raises(BridgeError, match="memory for it is shared before"):
            bridge._push(common, None)
        assert server.version == 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"combine": "average"}, "algorithm.combine: average needs gradients in an order: set it to fifo"),
        ({"max_staleness": 0}, "algorithm.max_staleness: 0 is for gradients that are discarded: leave it out"),
        ({"optimizer": "adam"}, "algorithm.optimizer: adam is none of rms_prop, momentum, adagrad: set one of these"),
    ],
)
def test_a_configuration_that_promises_more_is_refused(keys: dict[str, object], says: str) -> None:
    config = ConfigBase(**{"path": "x", "max_global_step": 1, **keys})  # type: ignore[arg-type]
    check_bridge(RlxServerSection(), config)
    check_bridge(RlxServerSection(bridge="hogwild"), ConfigBase(path="x", max_global_step=1))  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=f"bridge: hogwild has no locks; {says}, or set bridge to auto"):
        check_bridge(RlxServerSection(bridge="hogwild"), config)
