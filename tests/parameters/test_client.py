from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from relaax.parameters.client import Transport
from relaax.parameters.interfaces import (
    EXPLOIT,
    TRAIN,
    ParameterServerError,
    ParameterServerUnavailable,
    Purpose,
    TrainingEnded,
)
from relaax.parameters.moments import Moments
from relaax.server.command.termination import Reason
from support.cutting_proxy import CuttingProxy
from support.parameter_servers import SIZE, Models, fingerprint, gradient, parameter_client, registration, running
from support.processes import wait_until
from support.unused_address import unused_address

both_ways = pytest.mark.parametrize("transport", ["grpc", "shared_memory"])


@both_ways
def test_register_pull_push_and_close(transport: Transport) -> None:
    with running() as server, parameter_client(server.address, transport=transport) as parameters_client:
        registered = parameters_client.register(registration(environments=2, session_id="s"))
        assert (registered.parameters, registered.actors, registered.global_step) == (SIZE, (0, 1), 0)
        pulled = parameters_client.pull()
        assert (pulled.version, pulled.parameters.dtype, pulled.parameters.flags.writeable) == (0, np.float32, False)
        pushed = parameters_client.push(gradient(1, 2), env_steps=10)
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.parameters, -gradient(1, 2))
        assert (pushed.discarded, pushed.version, pushed.staleness, pushed.global_step) == (None, 1, 0, 10)
        assert parameters_client.pull() is pushed.pulled
        assert parameters_client.global_step == 10
        np.testing.assert_array_equal(pulled.parameters, np.zeros(SIZE))


@both_ways
def test_a_push_without_gradient_or_parameters(transport: Transport) -> None:
    with running() as server, parameter_client(server.address, transport=transport) as parameters_client:
        parameters_client.register(registration(frame_skip=4))
        parameters_client.pull()
        assert parameters_client.push(None, env_steps=3).version == 0
        pushed = parameters_client.push(gradient(1), env_steps=2, want_parameters=False)
        assert pushed.pulled is None
        # The worker has no newer parameters, so the next gradient belongs to version 0.
        assert parameters_client.push(gradient(1), env_steps=1).staleness == 1
        assert server.core.status().frames == 24


@both_ways
def test_a_stale_gradient_is_discarded_and_its_steps_count(transport: Transport) -> None:
    with (
        running(Models(max_staleness=0)) as server,
        parameter_client(server.address, transport=transport) as slow,
        parameter_client(server.address, transport=transport) as fast,
    ):
        for parameters_client in (slow, fast):
            parameters_client.register(registration())
            parameters_client.pull()
        fast.push(gradient(1), env_steps=1)
        pushed = slow.push(gradient(1), env_steps=7)
        assert (pushed.discarded, pushed.staleness, pushed.global_step) == ("stale", 1, 8)
        assert slow.push(gradient(1), env_steps=1).discarded is None
        assert slow.push(gradient(np.nan), env_steps=1).discarded == "not_finite"


@both_ways
def test_metrics_are_sent_with_a_push_and_counted_once(transport: Transport) -> None:
    with running() as server, parameter_client(server.address, transport=transport) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        for value in (10.0, 20.0):
            parameters_client.metrics.episode(value, 5)
            parameters_client.metrics.scalar("loss/value", value)
        parameters_client.push(gradient(1), 1)
        parameters_client.push(gradient(1), 1)
        _, scalars = server.core.scalars()
        assert (scalars["episode/return"], scalars["loss/value"], server.core.status().episodes) == (15.0, 15.0, 2)


def test_flush_reports_without_a_push_at_most_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("relaax.parameters.metrics.time.monotonic", lambda: now)
    with running() as server, parameter_client(server.address) as parameters_client:
        parameters_client.register(registration(purpose=EXPLOIT))
        for _ in range(3):
            parameters_client.metrics.episode(1.0, 1)
            parameters_client.flush()
        assert server.core.status().episodes == 1
        now += 1.0
        parameters_client.flush()
        assert server.core.status().episodes == 3


@both_ways
@pytest.mark.parametrize("purpose", [TRAIN, EXPLOIT])
def test_parameters_that_a_worker_has_are_not_sent_again(transport: Transport, purpose: Purpose) -> None:
    with (
        running(Models(statistics={"rewards": 1})) as server,
        parameter_client(server.address, transport=transport) as parameters_client,
        parameter_client(server.address) as other,
    ):
        parameters_client.register(registration(purpose=purpose))
        other.register(registration())
        other.pull()
        first = parameters_client.pull()
        assert parameters_client.pull() is first
        other.push(gradient(1), env_steps=1)
        second = parameters_client.pull()
        np.testing.assert_array_equal(second.parameters, -gradient(1))
        assert (second.version, parameters_client.pull()) == (1, second)
        # Statistics change without new parameters.
        other.metrics.statistic("rewards", Moments.of(np.array([[3.0]])))
        other.push(None, env_steps=1)
        third = parameters_client.pull()
        assert third is not second
        assert third.parameters is second.parameters
        assert third.statistics["rewards"].count == 1


@both_ways
@pytest.mark.parametrize("purpose", [TRAIN, EXPLOIT])
def test_worker_without_parameters_gets_those_of_its_first_pull(transport: Transport, purpose: Purpose) -> None:
    with (
        running(Models(statistics={"rewards": 1})) as server,
        parameter_client(server.address, transport=transport) as actor,
        parameter_client(server.address) as other,
    ):
        actor.register(registration(purpose=purpose, wants_parameters=False))
        other.register(registration())
        first = actor.pull()
        other.pull()
        for _ in range(2):
            other.metrics.statistic("rewards", Moments.of(np.array([[3.0], [4.0]])))
            other.push(gradient(1), env_steps=4)
        pulled = actor.pull()
        assert (pulled.version, pulled.global_step, pulled.frames) == (2, 8, 8)
        assert pulled.statistics["rewards"].count == 4
        assert pulled.parameters is first.parameters
        if purpose is TRAIN:
            other.push(gradient(1), env_steps=4)
            pushed = actor.push(None, env_steps=1)
            assert pushed.pulled is not None
            assert (pushed.pulled.version, pushed.pulled.frames) == (3, 13)
            assert pushed.pulled.parameters is first.parameters
            assert server.core.status().mean_actor_staleness == 1, "since its last pull"
        server.core.roll_back(None, fingerprint(), server.core.incarnation + 1)
        again = actor.pull()
        assert again.version == 0, "a new incarnation sends its parameters"
        np.testing.assert_array_equal(again.parameters, np.zeros(SIZE))


@both_ways
def test_a_push_without_changes_returns_no_parameters(transport: Transport) -> None:
    with running() as server, parameter_client(server.address, transport=transport) as parameters_client:
        parameters_client.register(registration())
        assert parameters_client.push(None, env_steps=1).pulled is not None  # the worker has no parameters yet
        pulled = parameters_client.pull()
        for nothing in (gradient(np.nan), None):
            again = parameters_client.push(nothing, env_steps=1).pulled
            assert again is not None and again.parameters is pulled.parameters and again.statistics is pulled.statistics
            assert again.frames == pulled.frames + 1
            assert parameters_client.push(nothing, env_steps=0).pulled is again
            pulled = again
        changed = parameters_client.push(gradient(1), env_steps=1).pulled
        assert changed is not None
        np.testing.assert_array_equal(changed.parameters, -gradient(1))
        parameters_client.push(gradient(1), env_steps=1, want_parameters=False)
        late = parameters_client.push(None, env_steps=1).pulled
        assert late is not None
        np.testing.assert_array_equal(late.parameters, -gradient(2))


def test_close_sends_the_last_metrics_and_deregisters() -> None:
    with running() as server:
        with parameter_client(server.address) as parameters_client:
            parameters_client.register(registration())
            assert server.core.status().workers == 1
            parameters_client.metrics.episode(1.0, 1)
        assert (server.core.status().workers, server.core.status().episodes) == (0, 1)
        parameters_client.close()


@both_ways
def test_an_exploit_worker_pulls_and_cannot_push(transport: Transport) -> None:
    with running() as server, parameter_client(server.address, transport=transport) as parameters_client:
        parameters_client.register(registration(purpose=EXPLOIT))
        assert parameters_client.pull().version == 0
        with pytest.raises(ParameterServerError, match="an exploit worker cannot push"):
            parameters_client.push(None, env_steps=1)


def test_another_configuration_is_refused_with_the_difference() -> None:
    with running() as server, parameter_client(server.address) as first, parameter_client(server.address) as second:
        first.register(registration())
        with pytest.raises(ParameterServerError, match=r"configuration\.gamma: 0\.9 at the worker, 0\.99 at the param"):
            second.register(registration(fingerprint=fingerprint(gamma=0.9)))
        assert server.core.status().workers == 1


def test_other_spaces_are_refused_and_the_client_is_named() -> None:
    with running() as server, parameter_client(server.address) as first, parameter_client(server.address) as second:
        first.register(registration())
        with pytest.raises(
            ParameterServerError,
            match=r"the client's environment does not fit the model.*: observation_space: .* at the",
        ):
            second.register(registration(fingerprint=fingerprint(size=7)))


def test_a_gradient_of_another_shape_or_dtype_is_an_error() -> None:
    with running() as server, parameter_client(server.address) as parameters_client:
        parameters_client.register(registration())
        with pytest.raises(RuntimeError, match="pull before"):
            parameters_client.push(gradient(1), 1)
        parameters_client.pull()
        for wrong in (np.zeros(SIZE + 1, np.float32), np.zeros(SIZE, np.float64)):
            with pytest.raises(ValueError, match="float32 of shape"):
                parameters_client.push(wrong, 1)  # type: ignore[arg-type]


def test_a_push_with_a_lost_answer_is_applied_once() -> None:
    with (
        running() as server,
        CuttingProxy(server.address) as proxy,
        parameter_client(proxy.address) as parameters_client,
    ):
        parameters_client.register(registration())
        parameters_client.pull()
        parameters_client.metrics.episode(10.0, 5)
        proxy.drop_answers()
        pushed = []
        thread = threading.Thread(target=lambda: pushed.append(parameters_client.push(gradient(1), env_steps=5)))
        thread.start()
        wait_until(lambda: server.core.status().episodes, "the push arrives")  # episodes are processed last
        proxy.cut()
        thread.join(60)
        assert [(p.version, p.global_step, p.discarded) for p in pushed] == [(1, 5, None)]
        np.testing.assert_array_equal(server.parameters, -gradient(1))
        assert server.core.status().episodes == 1
        assert parameters_client.push(gradient(1), env_steps=5).version == 2


@both_ways
def test_push_later_returns_the_answer_later(transport: Transport) -> None:
    with running() as server, parameter_client(server.address, transport=transport) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        answer = parameters_client.push_later(gradient(1), env_steps=5)
        wait_until(lambda: server.version == 1, "the push is applied before its answer is requested")
        pushed = answer()
        assert (pushed.version, pushed.global_step, answer()) == (1, 5, pushed)
        assert parameters_client.pull() is pushed.pulled
        first = parameters_client.push_later(gradient(1), env_steps=5)
        assert parameters_client.pull().version == 2, "the next call waits for the answer"
        second = parameters_client.push_later(gradient(1), env_steps=5, want_parameters=False)
        assert parameters_client.push(gradient(1), env_steps=5).staleness == 1
        assert (first().version, second().version, second().pulled) == (2, 3, None)
        assert parameters_client.global_step == 20


@both_ways
def test_push_later_survives_a_new_incarnation(transport: Transport) -> None:
    with running() as first, parameter_client(first.address, transport=transport) as parameters_client:
        parameters_client.register(registration(session_id="s"))
        parameters_client.pull()
        first.stop()
        with running(address=first.address) as second:
            answer = parameters_client.push_later(gradient(1), env_steps=7)
            parameters_client.metrics.episode(3.0, 1)
            parameters_client.flush()
            pushed = answer()
            assert (pushed.discarded, pushed.global_step, pushed.version) == ("incarnation", 7, 0)
            assert second.core.status().episodes == 1
            assert parameters_client.push_later(gradient(1), env_steps=1)().discarded is None


@both_ways
def test_withheld_gradients_count_as_discarded(transport: Transport) -> None:
    with running() as server, parameter_client(server.address, transport=transport) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        now = parameters_client.push(None, env_steps=5, withheld=True)
        later = parameters_client.push_later(None, env_steps=5, withheld=True)()
        assert [(p.discarded, p.version) for p in (now, later)] == [("loss", 0)] * 2
        status = server.core.status()
        assert (status.global_step, status.discarded_loss, status.discarded) == (10, 2, 2)
        assert parameters_client.push_later(None, env_steps=5)().discarded is None, "there was no gradient"


@both_ways
def test_push_later_after_a_roll_back_sends_no_gradient(transport: Transport) -> None:
    with running() as first, parameter_client(first.address, transport=transport) as parameters_client:
        parameters_client.register(registration(session_id="s"))
        parameters_client.pull()
        first.stop()
        with running(address=first.address) as second:
            parameters_client.metrics.episode(3.0, 1)
            parameters_client.flush()  # registers again, so the gradient is of an old incarnation
            pushed = parameters_client.push_later(gradient(1), env_steps=7)()
            assert (pushed.discarded, pushed.global_step, pushed.version) == ("incarnation", 7, 0)
            assert pushed.pulled is not None, "new parameters"
            np.testing.assert_array_equal(second.parameters, np.zeros(SIZE))
            assert parameters_client.push_later(gradient(1), env_steps=1)().discarded is None


def test_push_later_with_a_lost_answer_is_applied_once() -> None:
    with (
        running() as server,
        CuttingProxy(server.address) as proxy,
        parameter_client(proxy.address) as parameters_client,
    ):
        parameters_client.register(registration())
        parameters_client.pull()
        proxy.drop_answers()
        answer = parameters_client.push_later(gradient(1), env_steps=5)
        wait_until(lambda: server.version == 1, "the push arrives")
        proxy.cut()
        pushed = answer()
        assert (pushed.version, pushed.global_step, pushed.discarded) == (1, 5, None)
        np.testing.assert_array_equal(server.parameters, -gradient(1))


def test_the_answer_reports_the_end_of_training() -> None:
    with running(Models(max_global_step=10)) as server, parameter_client(server.address) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        answer = parameters_client.push_later(gradient(1), env_steps=10)
        with pytest.raises(TrainingEnded):
            answer()


def test_a_push_is_sent_again_after_its_deadline() -> None:
    with (
        running() as server,
        CuttingProxy(server.address) as proxy,
        parameter_client(proxy.address, timeout=0.5) as parameters_client,
    ):
        parameters_client.register(registration())
        parameters_client.pull()
        proxy.drop_answers()
        threading.Timer(0.7, proxy.cut).start()
        assert parameters_client.push(gradient(1), env_steps=5).version == 1
        assert server.core.status().global_step == 5


@both_ways
def test_a_new_incarnation_counts_the_steps_of_the_lost_push(
    transport: Transport,
) -> None:
    with running() as first:
        address = first.address
        with parameter_client(address, transport=transport) as parameters_client:
            parameters_client.register(registration(session_id="s"))
            parameters_client.pull()
            parameters_client.push(gradient(1), env_steps=5)
            first.stop()
            with running(address=address) as second:
                parameters_client.metrics.episode(3.0, 1)
                pushed = parameters_client.push(gradient(1), env_steps=7)
                assert (pushed.discarded, pushed.global_step, pushed.version) == ("incarnation", 7, 0)
                assert pushed.pulled is not None
                np.testing.assert_array_equal(pushed.pulled.parameters, np.zeros(SIZE))
                assert second.core.incarnation > first.core.incarnation
                assert second.core.status().episodes == 1
                assert parameters_client.push(gradient(1), env_steps=1).discarded is None


@both_ways
def test_pulls_and_reports_survive_a_new_incarnation_too(transport: Transport) -> None:
    with running() as first:
        address = first.address
        with parameter_client(address, transport=transport) as parameters_client:
            parameters_client.register(registration(purpose=EXPLOIT))
            pulled = parameters_client.pull()
            first.stop()
            with running(address=address) as second:
                parameters_client.metrics.episode(3.0, 1)
                parameters_client.flush()
                assert (second.core.status().episodes, second.core.status().exploit_workers) == (1, 1)
                assert parameters_client.pull() is not pulled


def test_a_push_in_the_checkpoint_is_not_reported_as_lost(tmp_path: Path) -> None:
    with (
        running(directory=tmp_path) as first,
        CuttingProxy(first.address) as proxy,
        parameter_client(proxy.address) as parameters_client,
    ):
        parameters_client.register(registration())
        parameters_client.pull()
        proxy.drop_answers()
        pushed = []
        thread = threading.Thread(target=lambda: pushed.append(parameters_client.push(gradient(1), env_steps=5)))
        thread.start()
        wait_until(lambda: first.version == 1, "the push arrives")
        first.stop()
        with running(directory=tmp_path, address=first.address) as second:
            proxy.cut()
            thread.join(60)
            assert [(p.discarded, p.version, p.global_step) for p in pushed] == [(None, 1, 5)]
            assert parameters_client.push(gradient(1), env_steps=2).discarded == "incarnation"
            assert second.core.status().global_step == 7
            np.testing.assert_array_equal(second.parameters, -gradient(1))


@both_ways
def test_every_call_reports_the_end_of_training(transport: Transport) -> None:
    with running(Models(max_global_step=10)) as server:
        with (
            parameter_client(server.address, transport=transport) as first,
            parameter_client(server.address, transport=transport) as second,
        ):
            for parameters_client in (first, second):
                parameters_client.register(registration())
                parameters_client.pull()
            assert first.push(gradient(1), env_steps=9).global_step == 9
            with pytest.raises(TrainingEnded, match="step 19"):
                first.push(gradient(1), env_steps=10)
            with pytest.raises(TrainingEnded):
                second.push(gradient(1), env_steps=10)
            with pytest.raises(TrainingEnded):
                second.pull()
            assert server.version == 2
            with parameter_client(server.address, transport=transport) as late, pytest.raises(TrainingEnded):
                late.register(registration())
        assert server.join() == (Reason.FINISHED, True)


def test_unavailable_is_raised_after_the_bounded_wait(caplog: pytest.LogCaptureFixture) -> None:
    with unused_address() as address, parameter_client(address, unavailable_after=0.5) as parameters_client:
        begun = time.monotonic()
        with pytest.raises(ParameterServerUnavailable, match=r"was unavailable for 0\.5 s"):
            parameters_client.register(registration())
        assert 0.4 < time.monotonic() - begun < 30
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@both_ways
def test_eight_concurrent_workers_lose_no_updates(transport: Transport) -> None:
    workers, pushes = 8, 25
    failures: list[BaseException] = []

    def work(address: str, number: int) -> None:
        try:
            with parameter_client(address, transport=transport) as parameters_client:
                parameters_client.register(registration(session_id=str(number)))
                parameters_client.pull()
                for _ in range(pushes):
                    parameters_client.push(-gradient(*[number + 1.0] * SIZE), env_steps=2)
                    parameters = parameters_client.pull().parameters
                    assert (parameters == parameters[0]).all()
        except BaseException as error:
            failures.append(error)

    with running() as server:
        threads = [threading.Thread(target=work, args=(server.address, n)) for n in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        np.testing.assert_array_equal(server.parameters, np.full(SIZE, pushes * sum(range(1, workers + 1))))
        counters = server.core.model.shard.counters
        assert (counters.version, counters.env_steps) == (workers * pushes, 2 * workers * pushes)
