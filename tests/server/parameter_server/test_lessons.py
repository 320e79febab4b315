"""Lessons at shard 0: what workers receive, what ends a lesson, and what a checkpoint keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from relaax.lessons.curriculum import Curriculum, Lesson
from relaax.lessons.values import Draw, Drawn, ValueRange
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import EXPLOIT
from support.parameter_servers import Models, Running, gradient, parameter_client, registration, running

LESSONS = [
    Lesson("small", {"size": ValueRange.constant(1)}, mean_return=1.0, episodes=2),
    Lesson("larger", {"size": ValueRange(2, 4)}, progress=0.5),
    Lesson(),
]


def made() -> Curriculum:
    return Curriculum({"size": ValueRange(choices=(4, 8)), "gravity": ValueRange.constant(9.5)}, LESSONS)


def size(client: ParameterClient) -> str:
    assert client.edition is not None
    return str(client.edition.values["size"])


def end_episode(client: ParameterClient, episode_return: float, edition: int | None = None) -> None:
    assert client.edition is not None
    number = client.edition.number if edition is None else edition
    client.metrics.episode(episode_return, 10, Drawn(Draw(1, 0, 0, 0), number, np.array([1.0, 9.5])))


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_worker_receives_the_values_of_each_lesson(transport: Any) -> None:
    with (
        running(Models(max_global_step=100), curriculum=made()) as server,
        parameter_client(server.address, transport=transport) as client,
    ):
        client.register(registration())
        client.pull()
        assert (size(client), str(client.edition)) == ("1", "size 1, gravity 9.5")
        end_episode(client, 1.0)
        end_episode(client, 1.0, edition=0)  # of an environment without parameters of the server
        client.push(gradient(1), 1)
        assert size(client) == "1"
        end_episode(client, 2.0)
        client.push(gradient(1), 1)
        assert (size(client), client.edition and client.edition.lesson) == ("2 to 4", 1)
        before = client.edition
        client.push(gradient(1), 47)
        client.pull()
        assert client.edition is before, "it is not sent again"
        client.push(gradient(1), 1)
        assert size(client) == "4 | 8"


def test_worker_that_only_acts_receives_them_with_reports() -> None:
    with (
        running(Models(max_global_step=100), curriculum=made()) as server,
        parameter_client(server.address) as trainer,
        parameter_client(server.address) as player,
    ):
        trainer.register(registration())
        player.register(registration(purpose=EXPLOIT))
        player.pull()
        trainer.pull()
        trainer.push(gradient(1), 60)
        assert size(player) == "1"
        end_episode(trainer, 1.0)
        end_episode(trainer, 1.0)
        trainer.push(None, 1)
        player.metrics.scalar("exploit/episode_return", 1.0)
        player.flush()
        assert size(player) == size(trainer) == "4 | 8"


def set_parameter(server: Running, name: str, value: float | None = None) -> pb.SetParameterResponse:
    with grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        return stub.SetParameter(pb.SetParameterRequest(name=name, value=value))  # type: ignore[no-any-return]


def test_number_that_a_user_sets_reaches_workers() -> None:
    with running(Models(), curriculum=made()) as server, parameter_client(server.address) as client:
        client.register(registration())
        answer = set_parameter(server, "gravity", 1.5)
        assert [(one.name, one.low, one.high) for one in answer.edition.parameters][1] == ("gravity", 1.5, 1.5)
        client.pull()
        assert str(client.edition) == "size 1, gravity 1.5"
        set_parameter(server, "gravity")
        client.pull()
        assert str(client.edition) == "size 1, gravity 9.5"


@pytest.mark.parametrize(
    ("name", "value", "code", "sentence"),
    [
        ("gravty", 1.0, grpc.StatusCode.INVALID_ARGUMENT, "unknown parameter 'gravty'; did you mean 'gravity'?"),
        ("gravity", float("nan"), grpc.StatusCode.INVALID_ARGUMENT, "a parameter must be within ±1e+30, not nan"),
        ("gravity", 1e31, grpc.StatusCode.INVALID_ARGUMENT, "a parameter must be within ±1e+30, not 1e+31"),
    ],
)
def test_wrong_number_is_refused(name: str, value: float, code: grpc.StatusCode, sentence: str) -> None:
    with running(Models(), curriculum=made()) as server:
        with pytest.raises(grpc.RpcError) as caught:
            set_parameter(server, name, value)
        error: Any = caught.value
        assert (error.code(), error.details()) == (code, sentence)


def test_server_without_parameters() -> None:
    with running() as server, parameter_client(server.address) as client:
        client.register(registration())
        client.pull()
        client.push(gradient(1), 1)
        assert client.edition is None
        with pytest.raises(grpc.RpcError) as caught:
            set_parameter(server, "gravity", 1)
        error: Any = caught.value
        assert error.details() == "the configuration of this training lacks environment-parameters"


def test_checkpoint_continues_the_lesson(tmp_path: Path) -> None:
    for lives in range(3):
        with (
            running(Models(max_global_step=10_000), tmp_path, curriculum=made()) as server,
            parameter_client(server.address) as client,
        ):
            client.register(registration())
            client.pull()
            status = server.core.status()
            if lives == 0:
                end_episode(client, 1.0)  # half of what the lesson needs
            elif lives == 1:
                assert (status.lesson, status.lesson_return) == (1, 1.0)
                end_episode(client, 1.0)
                client.push(None, 1)
                set_parameter(server, "gravity", 2)
            else:
                assert (status.lesson, status.lessons, status.lesson_name) == (2, 3, "larger")
                assert str(client.edition) == "size 2 to 4, gravity 2"
            client.push(gradient(1), 1)


def test_status_and_scalars_have_the_lesson() -> None:
    with running(Models(max_global_step=100), curriculum=made()) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.pull()
        end_episode(client, 0.5)
        client.push(gradient(1), 1)
        status = server.core.status()
        assert (status.lesson, status.lessons, status.lesson_name, status.lesson_return) == (1, 3, "small", 0.5)
        assert status.environment_parameters == "size 1, gravity 9.5"
        _, scalars = server.core.scalars()
        assert (scalars["lesson/number"], scalars["lesson/mean_return"]) == (1.0, 0.5)


def test_episodes_are_passed_on_with_their_numbers() -> None:
    found: list[tuple[int, float, list[float]]] = []
    with running(Models(max_global_step=100), curriculum=made()) as server, parameter_client(server.address) as client:
        server.core.on_episodes = lambda step, episodes: found.extend(
            (step, one.episode_return, list(one.parameters)) for one in episodes
        )
        client.register(registration())
        client.pull()
        end_episode(client, 0.5)
        client.metrics.episode(0.25, 10)
        client.push(gradient(1), 7)
    assert found == [(7, 0.5, [1.0, 9.5])]


def test_episode_with_wrong_numbers_is_refused() -> None:
    with running(Models(), curriculum=made()) as server, grpc.insecure_channel(server.address) as channel:
        stub = pb_grpc.ParameterServerServiceStub(channel)
        for parameters in ([float("nan")], [1e31], [0.0] * 65):
            episode = pb.EpisodeResult(edition=1, length=1, parameters=parameters)
            report = pb.ReportRequest(worker_id="0" * 32, report=pb.MetricsReport(episodes=[episode]))
            with pytest.raises(grpc.RpcError, match="an episode has at most 64 parameters"):
                stub.Report(report)
