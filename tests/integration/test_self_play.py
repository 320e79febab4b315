"""Self-play through real processes: older checkpoints play, and ratings survive a kill of the parameter server."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.checkpoint.manifest import global_step_of
from relaax.client import Box, Discrete, VectorClient
from relaax.files import write_whole
from relaax.policy import load
from relaax.policy.file import policy_of
from support.processes import Processes, wait_until
from support.service import RLX_SERVER, Service, started_service

pytestmark = pytest.mark.checks(
    "relaax/server/rlx_server", "relaax/server/parameter_server", "relaax/checkpoint", "relaax/lessons"
)

EVERY, ENVIRONMENTS = 400, 16
SPACES: dict[str, Any] = {"observation_space": Box(-3, 3, shape=(5,)), "action_space": Discrete(20)}
STATES = np.random.default_rng(0).normal(size=(ENVIRONMENTS, 5)).clip(-3, 3).astype(np.float32)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    keys = {"initial_learning_rate": 0.1, "episode_len": 5, "normalize_rewards": None}
    with started_service(tmp_path, sections={"opponents": {"keep": 2, "every": EVERY}}, **keys) as made:
        yield made


def checkpoints(service: Service) -> list[str]:
    """Return the ids of the checkpoints, newest first."""
    return CheckpointManager(LocalStore(service.folder / "checkpoints")).published()


def train(service: Service, until: int) -> None:
    """Train with rewards that depend on the action, from `until` minus the steps so far."""
    with VectorClient(service.address, environments=ENVIRONMENTS, retry_seconds=60, **SPACES) as client:
        actions = client.init(STATES)
        for _ in range(1000):
            if service.status.global_step >= until:
                return
            for _ in range(5):
                actions = client.step((actions % 3).astype(np.float64), STATES)
    raise AssertionError(f"{until} steps were not reached")


def greedy(service: Service, checkpoint_id: str, folder: Path) -> list[int]:
    """Return the actions of a checkpoint's policy."""
    manager = CheckpointManager(LocalStore(service.folder / "checkpoints"))
    file = folder / "policy.safetensors"
    write_whole(file, policy_of(manager.load(checkpoint_id)))
    actions: list[int] = load(file).act(STATES).tolist()
    return actions


def opponent(service: Service) -> VectorClient:
    return VectorClient(service.address, environments=ENVIRONMENTS, mode="exploit", retry_seconds=60, **SPACES)


def play(client: VectorClient, reward: float) -> None:
    """End an episode in each environment."""
    client.step(np.full(ENVIRONMENTS, reward), STATES, np.ones(ENVIRONMENTS, np.bool_))


def test_older_checkpoints_play_and_ratings_survive_a_kill(service: Service, tmp_path: Path) -> None:
    with opponent(service) as early:
        early.init(STATES)
        play(early, -1.0)
    service.wait_for_no_workers()
    assert service.status.elo == 1200, "games with the parameters in training do not count"
    train(service, EVERY)
    wait_until(lambda: len(checkpoints(service)) == 1, "the first opponent is saved")
    (first,) = checkpoints(service)
    train(service, 2 * EVERY - 200)
    assert service.status.global_step < 2 * EVERY
    with opponent(service) as client:
        assert client.init(STATES).tolist() == greedy(service, first, tmp_path)
        for reward in (-1.0, -1.0, 0.0, 1.0):
            play(client, reward)
    status = service.wait_for_no_workers()
    assert status.opponent_win_rate == 2.5 / 4
    assert status.elo > 1200
    train(service, 2 * EVERY)
    wait_until(lambda: len(checkpoints(service)) == 2, "the second opponent is saved")
    second = checkpoints(service)[0]
    assert greedy(service, second, tmp_path) != greedy(service, first, tmp_path), "they differ"
    rating = service.status.elo
    service.parameter_server.send_signal(signal.SIGKILL)
    service.parameter_server.wait(30)
    service.start_parameter_server()
    status = service.status
    assert (status.elo, status.opponent_win_rate) == (rating, 2.5 / 4)
    assert status.global_step == global_step_of(second)
    manager = CheckpointManager(LocalStore(service.folder / "checkpoints"))
    kept = manager.manifest(second)["opponents"]
    assert [name for name, _ in kept["checkpoints"]] == [first]
    expected = np.array([greedy(service, one, tmp_path) for one in (first, second)])
    different = expected[0] != expected[1]
    with opponent(service) as client:
        actions = client.init(STATES)
        played = np.zeros(2, np.bool_)
        for _ in range(6):
            assert (expected == actions).any(axis=0).all()
            played |= ((expected == actions) & different).any(axis=1)
            actions = client.step(np.full(ENVIRONMENTS, -1.0), STATES, np.ones(ENVIRONMENTS, np.bool_))
    assert played.all(), "both are drawn"
    assert service.wait_for_no_workers().elo > rating


def test_server_without_a_place_of_checkpoints_does_not_start(tmp_path: Path) -> None:
    config = tmp_path / "self_play.yaml"
    config.write_text(json.dumps({"opponents": {"every": 100}, "algorithm": {"path": "da3c"}}))
    with Processes(tmp_path) as processes:
        server = processes.start(*RLX_SERVER, "--config", config, "--bind", "127.0.0.1:0")
        assert server.wait(90) == 2, server.report()
        assert "set checkpoint-dir or checkpoint-aws-s3, or omit opponents" in server.stderr
