"""Games against older checkpoints at shard 0: reports of exploit workers, ratings, metrics and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from relaax.lessons.ratings import INITIAL, OpponentRatings
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as pb_grpc
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import EXPLOIT
from support.parameter_servers import gradient, parameter_client, registration, running


def player(client: ParameterClient) -> ParameterClient:
    """Register a client that only acts."""
    client.register(registration(purpose=EXPLOIT))
    return client


def test_games_of_exploit_workers_change_rating_and_win_rate() -> None:
    with (
        running(ratings=OpponentRatings(10, 100)) as server,
        parameter_client(server.address) as trainer,
        parameter_client(server.address) as opponent,
    ):
        trainer.register(registration())
        player(opponent)
        status = server.core.status()
        assert (status.elo, status.opponent_win_rate) == (INITIAL, None)
        trainer.pull()
        trainer.push(gradient(1), 1)
        _, scalars = server.core.scalars()
        assert scalars["opponents/elo"] == INITIAL
        assert "opponents/win_rate" not in scalars
        for episode_return in (-1.0, -1.0, 0.0, 1.0):
            opponent.metrics.game("00000001-100", episode_return)
        opponent.flush()
        status = server.core.status()
        assert status.elo is not None
        assert status.elo > INITIAL
        assert status.opponent_win_rate == 2.5 / 4
        trainer.push(gradient(1), 1)
        _, scalars = server.core.scalars()
        assert (scalars["opponents/elo"], scalars["opponents/win_rate"]) == (status.elo, 2.5 / 4)


def test_server_without_opponents_ignores_games() -> None:
    with running() as server, parameter_client(server.address) as opponent:
        player(opponent).metrics.game("00000001-100", -1.0)
        opponent.flush()
        status = server.core.status()
        assert (status.elo, status.opponent_win_rate) == (None, None)


def test_games_before_the_end_of_a_connection_count() -> None:
    with running(ratings=OpponentRatings(10, 100)) as server:
        with parameter_client(server.address) as opponent:
            player(opponent).metrics.game("00000001-100", -1.0)
        assert server.core.status().opponent_win_rate == 1.0


@pytest.mark.parametrize("game", [("../secret", 1.0), ("", 1.0), ("00000001-100", float("nan"))])
def test_game_with_wrong_values_is_refused(game: tuple[str, float]) -> None:
    with running(ratings=OpponentRatings(10, 100)) as server, grpc.insecure_channel(server.address) as channel:
        stub: Any = pb_grpc.ParameterServerServiceStub(channel)
        message = pb.GameResult(checkpoint=game[0], episode_return=game[1])
        request = pb.ReportRequest(worker_id="0" * 32, report=pb.MetricsReport(games=[message]))
        with pytest.raises(grpc.RpcError, match="a game needs the id of a checkpoint and a return"):
            stub.Report(request, timeout=20)


def test_restarted_server_continues_the_ratings(tmp_path: Path) -> None:
    ratings = OpponentRatings(10, 100)
    with (
        running(directory=tmp_path, ratings=ratings) as server,
        parameter_client(server.address) as trainer,
        parameter_client(server.address) as opponent,
    ):
        trainer.register(registration())
        trainer.pull()
        trainer.push(gradient(1), 130)
        player(opponent).metrics.game("00000001-100", -1.0)
        opponent.flush()
    (checkpoint_id,) = server.manager.published()
    assert ratings.of(checkpoint_id) == ratings.rating > INITIAL
    restored = OpponentRatings(10, 100)
    with running(directory=tmp_path, ratings=restored) as server:
        assert (restored.rating, restored.win_rate) == (ratings.rating, 1.0)
        assert restored.of(checkpoint_id) == ratings.rating, "the checkpoint does not contain its own rating"
