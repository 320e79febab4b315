"""Learners, and the workers that push no gradients because learners compute them."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from relaax.cli.live.top import ServiceWatcher, service_tables
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import EXPLOIT, LEARN, TRAIN, ParameterServerError, TrainingEnded
from relaax.server.parameter_server.service.registry import Registry
from relaax.server.parameter_server.service.service import ParameterService, check_registration
from relaax.server.service_errors import InvalidRequest
from relaax.transport.channel import Target
from support.parameter_servers import Models, fingerprint, gradient, parameter_client, registration, running

LEARNER = {"purpose": LEARN, "environments": 0, "environment": "learner 0", "host": "here"}


def test_learner_has_no_actor_indices() -> None:
    registry = Registry()
    first = registry.register("w1", "x", 2, TRAIN, 1)
    learner = registry.register("l", "", 0, LEARN, 1)
    second = registry.register("w2", "y", 1, EXPLOIT, 1)
    assert (tuple(first.actors), tuple(learner.actors), tuple(second.actors)) == ((0, 1), (), (2,))
    assert [registry.count(purpose) for purpose in (TRAIN, EXPLOIT, LEARN, None)] == [1, 1, 1, 3]
    assert registry.actors_as_json().keys() == {"x", "y"}
    assert registry.remove("l") is learner
    assert registry.count() == 2


def test_only_learners_have_no_environments() -> None:
    def request(role: pb.Role, environments: int) -> pb.RegisterRequest:
        return pb.RegisterRequest(worker_id="0" * 32, role=role, environments=environments)

    check_registration(request(pb.ROLE_LEARN, 0))
    with pytest.raises(InvalidRequest, match="environments must be 0 for a learner, not 2"):
        check_registration(request(pb.ROLE_LEARN, 2))
    with pytest.raises(InvalidRequest, match="environments must be from 1 to"):
        check_registration(request(pb.ROLE_TRAIN, 0))


def test_learner_is_counted_apart_from_workers() -> None:
    with running() as server, parameter_client(server.address) as worker, parameter_client(server.address) as learner:
        assert learner.register(registration(**LEARNER)).actors == ()
        assert server.core.status().training_seconds == 0, "the time of training begins with the first worker"
        worker.register(registration(environments=2))
        learner.pull()
        learner.metrics.gauge("worker/memory_mb", 1.0)
        pushed = learner.push(gradient(1), env_steps=0)
        assert (pushed.version, pushed.global_step) == (1, 0)
        status = server.core.status()
        assert (status.workers, status.exploit_workers, status.learners, status.updates) == (1, 0, 1, 1)
        assert status.training_seconds > 0
        described = {one.environments: one for one in ParameterService(server.core).workers().workers}
        assert (described[0].role, described[0].environment, described[0].host) == (pb.ROLE_LEARN, "learner 0", "here")
        assert described[2].role == pb.ROLE_TRAIN


def test_push_of_a_learner_fails_after_the_end_of_training() -> None:
    with (
        running(Models(max_global_step=5)) as server,
        parameter_client(server.address) as worker,
        parameter_client(server.address) as learner,
    ):
        worker.register(registration())
        learner.register(registration(**LEARNER))
        worker.pull()
        learner.pull()
        with pytest.raises(TrainingEnded):
            worker.push(None, env_steps=5)
        with pytest.raises(TrainingEnded):
            learner.push(gradient(1), env_steps=0)
        assert server.version == 0


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_steps_without_a_gradient_send_no_parameters_again(transport) -> None:  # type: ignore[no-untyped-def]
    with running() as server, parameter_client(server.address, transport=transport) as worker:
        worker.register(registration(environments=3, frame_skip=4))
        before = worker.pull()
        pushed = worker.push(None, env_steps=10)
        assert (pushed.discarded, pushed.version, pushed.global_step, pushed.staleness) == (None, 0, 10, 0)
        assert pushed.pulled is not None
        assert pushed.pulled.parameters is before.parameters, "the parameters are not sent again"
        assert (pushed.pulled.frames, pushed.pulled.actor_count) == (40, 3)
        status = server.core.status()
        assert (status.updates, status.discarded, status.global_step, status.frames) == (0, 0, 10, 40)
        assert status.mean_staleness == 0
        assert server.core.metrics.drain().get("staleness/mean") is None


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_staleness_of_an_actor_is_that_of_its_parameters(transport: str) -> None:
    with (
        running() as server,
        parameter_client(server.address, transport=transport) as actor,
        parameter_client(server.address) as learner,
    ):
        assert server.core.status().mean_actor_staleness is None
        actor.register(registration())
        actor.pull()
        learner.register(registration(**LEARNER))
        learner.pull()
        for _ in range(3):
            learner.push(gradient(1), env_steps=0)
        learner.flush()
        assert server.core.status().mean_actor_staleness is None, "a learner is not an actor"
        assert actor.push(None, env_steps=10).staleness == 0, "no gradient is applied"
        actor.push(None, env_steps=10)
        assert server.core.status().mean_actor_staleness == 1.5
        assert server.core.metrics.drain()["staleness/actors"] == 1.5


def test_pull_returns_the_number_of_all_actors() -> None:
    with running() as server, parameter_client(server.address) as one, parameter_client(server.address) as other:
        one.register(registration(environments=3))
        alone = one.pull()
        assert alone.actor_count == 3
        assert one.pull() is alone
        other.register(registration(environments=2))
        theirs = other.pull()
        assert (theirs.actor_rank, theirs.actor_count) == (3, 5)
        together = one.pull()
        assert (together.actor_rank, together.actor_count) == (0, 5)
        assert together.parameters is alone.parameters
        pushed = other.push(gradient(1), env_steps=1)
        assert pushed.pulled is not None
        assert (pushed.pulled.actor_rank, pushed.pulled.actor_count) == (3, 5)


def test_push_after_a_flush_to_a_new_incarnation_is_discarded() -> None:
    with running() as first:
        address = first.address
        with parameter_client(address) as learner:
            learner.register(registration(**LEARNER))
            learner.pull()
            first.stop()
            with running(address=address) as second:
                learner.metrics.scalar("learner/wait_fraction", 1.0)
                learner.flush()
                assert second.core.status().learners == 1
                pushed = learner.push(gradient(1), env_steps=0, want_parameters=False)
                assert pushed.discarded == "incarnation"
                assert pushed.pulled is not None
                assert second.version == 0
                assert learner.push(gradient(1), env_steps=0).version == 1
                np.testing.assert_array_equal(second.parameters, -gradient(1))


def test_status_has_the_spaces_of_the_model() -> None:
    with running() as server, parameter_client(server.address) as worker:
        assert server.core.status().spaces == ""
        worker.register(registration())
        ours = json.loads(fingerprint())
        assert json.loads(server.core.status().spaces) == {
            name: ours[name] for name in ("observation_space", "action_space")
        }


def test_gradient_before_the_first_pull_is_an_error() -> None:
    with running() as server, parameter_client(server.address) as learner:
        learner.register(registration(**LEARNER))
        with pytest.raises(RuntimeError, match="call pull before the first push"):
            learner.push(gradient(1), env_steps=0)
        with pytest.raises(ParameterServerError, match="environments must be 0 for a learner"):
            learner.register(registration(**{**LEARNER, "environments": 1}))


def test_top_shows_learners_apart_from_workers() -> None:
    with running() as server, parameter_client(server.address) as worker, parameter_client(server.address) as learner:
        worker.register(registration(environments=2, environment="CartPole-v1", server="here:7001"))
        learner.register(registration(**LEARNER))
        watcher = ServiceWatcher([Target(server.address)])
        try:
            seen = watcher.snapshot()
        finally:
            watcher.close()
        assert [shard["learners"] for shard in seen["shards"]] == [1]
        assert [(one["mode"], one["actor"]) for one in seen["workers"]] == [("train", 0), ("learn", None)]
        assert [one["server"] for one in seen["servers"]] == ["here:7001"], "a learner has no RLX server"
        console = Console(file=io.StringIO(), width=140)
        console.print(service_tables(seen))
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert "workers: 1 train, 0 exploit, 1 learn" in text
        assert re.search(r"–\s+learner 0\s+here\s+learn\s+0\s+–", text)
