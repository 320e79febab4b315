"""Tests of the inference process: equal outputs, common passes, newer parameters, errors, and its restart."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base.testing import FakeParameters
from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.nn.engine import make_actor, share_actors
from relaax.nn.initialization import orthogonal_parameters
from relaax.nn.specification import Convolution, NetworkSpec
from relaax.parameters.interfaces import (
    INFER,
    ParameterServerError,
    ParameterServerUnavailable,
    Pulled,
    Registered,
    Registration,
    TrainingEnded,
)
from relaax.server.rlx_server.inference import parameter_source, process
from relaax.server.rlx_server.inference.exchange import HELLO, REQUEST, new_socket
from relaax.server.rlx_server.inference.process import InferenceLoop
from relaax.server.rlx_server.inference.shared_actor import ROWS, InferenceUnavailable, SharedActor
from relaax.server.rlx_server.workers.plan import plan_workers
from support.processes import wait_until

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the system has no memory by descriptor")

SMALL = NetworkSpec(inputs=(3,), heads={"policy": 2, "value": 1}, dense=(8,), activation="tanh")
PICTURES = NetworkSpec(inputs=(12, 12, 2), heads={"q": 3}, dense=(8,), convolutions=(Convolution(4, 4, 2),))
RECURRENT = NetworkSpec(inputs=(3,), heads={"policy": 2}, dense=(8,), activation="tanh", lstm=4)
PATIENCE = 30.0


class Server:
    """A parameter server of a vector. Pulls wait until it is `open`, and then raise `failure` if there is one."""

    def __init__(self, parameters: np.ndarray[Any, np.dtype[np.float32]]) -> None:
        self.vector = parameters
        self.registrations: list[Registration] = []
        self.clients: list[FakeParameters] = []
        self.open = threading.Event()
        self.open.set()
        self.failure: Exception | None = None

    def client(self) -> FakeParameters:
        server = self

        class Client(FakeParameters):
            def register(self, registration: Registration) -> Registered:
                server.registrations.append(registration)
                return super().register(registration)

            def pull(self) -> Pulled:
                assert server.open.wait(PATIENCE)
                if server.failure is not None:
                    raise server.failure
                return super().pull()

        self.clients.append(Client(self.vector))
        return self.clients[-1]


class Metrics(dict[str, list[float]]):
    def scalar(self, name: str, value: float) -> None:
        self.setdefault(name, []).append(value)


@contextlib.contextmanager
def serving(server: Server, listener: socket.socket) -> Iterator[InferenceLoop]:
    """Serve at `listener` in a thread, until the end of the block."""
    lifeline, server_end = os.pipe()
    loop = InferenceLoop(listener, lifeline, server.client, "here:1")
    thread = threading.Thread(target=loop.serve)
    thread.start()
    try:
        yield loop
    finally:
        os.close(server_end)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        os.close(lifeline)


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    with new_socket() as listener:
        listener.bind("")
        listener.listen(16)
        yield listener


Make = Callable[..., SharedActor]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Make, Metrics]]:
    """Return a function that makes actors of a socket, and their metrics."""
    monkeypatch.setattr(parameter_source, "PULL_SECONDS", 0.01)
    metrics, actors = Metrics(), []

    def make(listener: socket.socket, spec: NetworkSpec = SMALL, dtype: Any = np.float32, **more: Any) -> SharedActor:
        given = {"first": 0, "patience": PATIENCE, **more}
        actors.append(
            SharedActor(listener.getsockname(), given["patience"], "model", metrics, spec, dtype, given["first"])
        )  # type: ignore[arg-type]
        return actors[-1]

    yield make, metrics
    for actor in actors:
        actor.close()


def parameters_of(spec: NetworkSpec) -> np.ndarray[Any, np.dtype[np.float32]]:
    return orthogonal_parameters(spec, 1, dict.fromkeys(spec.heads, 1.0))


def inputs_of(spec: NetworkSpec, count: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(count)
    if spec.convolutions:
        return random.integers(0, 256, (count, *spec.inputs), np.uint8)
    return random.standard_normal((count, *spec.inputs), np.float32)


def no_state(count: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.zeros((count, 0), np.float32)


@pytest.mark.parametrize("spec", [SMALL, PICTURES, RECURRENT], ids=["small", "pictures", "recurrent"])
def test_outputs_equal_those_of_the_workers_own_actor(spec: NetworkSpec, made: tuple[Make, Metrics]) -> None:
    make, _ = made
    dtype = np.uint8 if spec.convolutions else np.float32
    vector = np.concatenate([np.full(5, np.nan, np.float32), parameters_of(spec)])
    own = make_actor(spec, dtype, compiled=True)
    own.set_parameters(vector[5:])
    server = Server(vector)
    with listening() as listener, serving(server, listener):
        shared = make(listener, spec, dtype, first=5)
        shared.set_parameters(vector[5:])
        state = np.random.default_rng(0).standard_normal((7, spec.state_size)).astype(np.float32)
        for count in (2, 7, 1):
            inputs = inputs_of(spec, count)
            outputs, after = shared.act(inputs, state[:count])
            expected, expected_after = own.act(inputs, state[:count])
            assert outputs.keys() == expected.keys()
            for head, output in outputs.items():
                np.testing.assert_allclose(output, expected[head], rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(after, expected_after, rtol=1e-5, atol=1e-6)
    (registration,) = server.registrations
    assert (registration.purpose, registration.environments, registration.server) == (INFER, 0, "here:1")
    assert server.clients[0].closed


def test_tensorflows_engine_computes_batches_of_all_lengths(
    made: tuple[Make, Metrics], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of GPUs, here on the CPU."""
    make, metrics = made
    vector = parameters_of(PICTURES)
    own = make_actor(PICTURES, np.uint8, compiled=True)
    own.set_parameters(vector)
    monkeypatch.setattr("relaax.nn.engine.computes_on_gpu", lambda: True)
    with listening() as listener, serving(Server(vector), listener) as loop, ThreadPoolExecutor(3) as threads:
        actors = [make(listener, PICTURES, np.uint8) for _ in range(3)]
        for counts in ((1, 2, 3), (5, 1, 9)):
            inputs = [inputs_of(PICTURES, count) for count in counts]
            acting = [threads.submit(a.act, i, no_state(len(i))) for a, i in zip(actors, inputs, strict=True)]
            for given, each in zip(inputs, acting, strict=True):
                expected = own.act(given, no_state(len(given)))[0]["q"]
                np.testing.assert_allclose(each.result(PATIENCE)[0]["q"], expected, rtol=1e-4, atol=1e-5)
        (network,) = loop._networks.values()
        assert type(network.actor).__name__ == "TensorFlowEngine"
    assert len(metrics[ROWS]) == 6


def test_waiting_requests_are_computed_in_one_pass(made: tuple[Make, Metrics]) -> None:
    make, metrics = made
    server = Server(parameters_of(SMALL))
    server.open.clear()
    with listening() as listener, serving(server, listener) as loop, ThreadPoolExecutor(3) as threads:
        acting = [threads.submit(make(listener).act, inputs_of(SMALL, n), no_state(n)) for n in (1, 2, 3)]
        wait_until(lambda: len(loop._waiting) == 3, "all requests wait for the first parameters")
        server.open.set()
        for count, each in zip((1, 2, 3), acting, strict=True):
            assert each.result(PATIENCE)[0]["policy"].shape == (count, 2)
    assert metrics[ROWS] == [6, 6, 6]


def test_idle_connection_does_not_delay_others(made: tuple[Make, Metrics]) -> None:
    make, metrics = made
    with listening() as listener, serving(Server(parameters_of(SMALL)), listener):
        idle, busy = make(listener), make(listener)
        idle.act(inputs_of(SMALL, 4), no_state(4))
        for _ in range(3):
            busy.act(inputs_of(SMALL, 1), no_state(1))
        idle.act(inputs_of(SMALL, 4), no_state(4))
    assert metrics[ROWS] == [4, 1, 1, 1, 4]


def test_pass_is_bounded_but_answers_all(made: tuple[Make, Metrics], monkeypatch: pytest.MonkeyPatch) -> None:
    make, metrics = made
    monkeypatch.setattr(process, "MAX_ROWS", 4)
    server = Server(parameters_of(SMALL))
    with listening() as listener, serving(server, listener), ThreadPoolExecutor(5) as threads:
        acting = [threads.submit(make(listener).act, inputs_of(SMALL, n), no_state(n)) for n in (3, 3, 2, 2, 9)]
        for each in acting:
            each.result(PATIENCE)
    assert set(metrics[ROWS]) <= {2, 3, 4, 9}


def test_newer_parameters_are_used_without_the_worker(made: tuple[Make, Metrics]) -> None:
    make, _ = made
    server = Server(parameters_of(SMALL))
    with listening() as listener, serving(server, listener):
        actor = make(listener)
        inputs = inputs_of(SMALL, 1)
        first, _ = actor.act(inputs, no_state(1))
        assert actor.version == 0
        server.clients[0].publish(np.zeros_like(server.vector))

        def acted() -> bool:
            outputs, _ = actor.act(inputs, no_state(1))
            return actor.version == 1 and not outputs["value"].any()

        wait_until(acted, "the actor acts with the newer parameters")
        assert first["value"].any()


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (ParameterServerUnavailable("none answers"), ParameterServerUnavailable),
        (ParameterServerError("another model"), ParameterServerError),
        (TrainingEnded(17), TrainingEnded),
    ],
)
def test_worker_gets_the_error_of_the_first_pull(
    made: tuple[Make, Metrics], failure: Exception, error: type[Exception]
) -> None:
    make, _ = made
    server = Server(parameters_of(SMALL))
    server.failure = failure
    with listening() as listener, serving(server, listener):
        actor = make(listener)
        with pytest.raises(error) as raised:
            actor.act(inputs_of(SMALL, 1), no_state(1))
        assert str(raised.value) == str(failure)
        server.failure = None
        outputs, _ = actor.act(inputs_of(SMALL, 1), no_state(1))  # it registers again
        assert outputs["policy"].shape == (1, 2)


def test_acting_continues_after_the_end_of_training(made: tuple[Make, Metrics]) -> None:
    make, _ = made
    server = Server(parameters_of(SMALL))
    with listening() as listener, serving(server, listener):
        actor = make(listener)
        actor.act(inputs_of(SMALL, 1), no_state(1))
        server.failure = TrainingEnded(17)
        pulls = server.clients[0].pulls
        for _ in range(20):
            actor.act(inputs_of(SMALL, 1), no_state(1))
        assert server.clients[0].pulls <= pulls + 1


def test_request_is_repeated_at_a_restarted_process(made: tuple[Make, Metrics]) -> None:
    make, _ = made
    server = Server(parameters_of(SMALL))
    with listening() as listener:
        actor = make(listener)
        with serving(server, listener):
            before, _ = actor.act(inputs_of(SMALL, 2), no_state(2))
        with ThreadPoolExecutor(1) as threads:
            acting = threads.submit(actor.act, inputs_of(SMALL, 2), no_state(2))
            with serving(server, listener):
                after, _ = acting.result(PATIENCE)
        np.testing.assert_array_equal(before["policy"], after["policy"])


def test_worker_without_an_answer_gives_up_in_time(made: tuple[Make, Metrics]) -> None:
    make, _ = made
    with listening() as listener:  # none accepts
        actor = make(listener, patience=0.3)
        with pytest.raises(InferenceUnavailable, match=r"has not answered within 0.3 s: it did not answer in time"):
            actor.act(inputs_of(SMALL, 1), no_state(1))


@pytest.mark.parametrize("message", [b"", b"hello", REQUEST.pack(1), b"x" * 100])
def test_broken_messages_end_only_their_connection(made: tuple[Make, Metrics], message: bytes) -> None:
    make, _ = made
    server = Server(parameters_of(SMALL))
    with listening() as listener, serving(server, listener):
        with new_socket() as stranger:
            stranger.settimeout(PATIENCE)
            stranger.connect(listener.getsockname())
            stranger.send(message)
            if message:
                assert stranger.recv(1) == b""
        with new_socket() as stranger, open(os.devnull, "rb") as empty:
            stranger.settimeout(PATIENCE)
            stranger.connect(listener.getsockname())
            socket.send_fds(stranger, [HELLO], [empty.fileno(), empty.fileno()])
            assert stranger.recv(1) == b""
        outputs, _ = make(listener).act(inputs_of(SMALL, 1), no_state(1))
        assert outputs["policy"].shape == (1, 2)


def test_parameters_of_another_length_are_refused(made: tuple[Make, Metrics]) -> None:
    make, _ = made
    with listening() as listener, pytest.raises(ValueError):
        make(listener).set_parameters(np.zeros(3, np.float32))


def test_shared_actors_replace_those_of_this_process() -> None:
    made: list[tuple[NetworkSpec, Any, int]] = []

    def make(spec: NetworkSpec, dtype: Any, first: int) -> Any:
        made.append((spec, dtype, first))
        return "shared"

    share_actors(make)
    try:
        assert make_actor(SMALL, np.float32, compiled=True, first=7) == "shared"
    finally:
        share_actors(None)
    assert made == [(SMALL, np.float32, 7)]
    assert make_actor(SMALL, np.float32) != "shared"


def test_inference_is_refused_if_workers_compute_gradients() -> None:
    section = {"path": "da3c"}
    with pytest.raises(ConfigurationError, match=r"relaax-rlx-server\.inference: shared is for workers that only act"):
        plan_workers(RlxServerSection(inference="shared"), section, "da3c", Path.cwd())
    plan = plan_workers(RlxServerSection(inference="shared", exploit=True), section, "da3c", Path.cwd())
    assert plan.algorithm.name == "da3c"


def test_inference_is_refused_with_spawned_workers() -> None:
    with pytest.raises(ValueError, match="inference shared needs workers that are forked, and worker_start is spawn"):
        RlxServerSection(inference="shared", worker_start="spawn")
