"""The actions that clients chose, with real servers: what is counted, and what the replay memory keeps."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaax import rlx
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.client import VectorClient
from support.metrics_page import scalars
from support.processes import Processes, wait_until
from support.service import PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER, Service, started_service, status_of

pytestmark = pytest.mark.checks("relaax/client", "relaax/server", "relaax/parameters", "relaax/replay", "algorithms")

ENVIRONMENTS = 4
ROLLOUT = 5
STEPS = 60
PATIENCE = 120.0
SPACES = {"apex": rlx.Discrete(5, 2), "sac": rlx.Box(-1, 1, (2,)), "apex_dpg": rlx.Box(-1, 1, (2,))}


def numbered(step: int) -> np.ndarray:
    """Return observations that name their step and their environment, float32 [ENVIRONMENTS x 2]."""
    return np.array([[step, index] for index in range(ENVIRONMENTS)], np.float32)


def client_of(address: str, action_space: rlx.Space) -> VectorClient:
    spaces = {"observation_space": rlx.Box(shape=(2,)), "action_space": action_space}
    return VectorClient(address, environments=ENVIRONMENTS, chosen_actions=True, **spaces)


def shares(service: Service) -> list[float]:
    """Return the values of the metric."""
    return scalars(service.folder / "metrics").get("actions/chosen", [])


def new_shares(service: Service, before: int) -> list[float]:
    """Wait until the metric has more than `before` values, and return the others."""
    wait_until(lambda: len(shares(service)) > before, "the share of chosen actions is written", PATIENCE)
    return shares(service)[before:]


def test_share_of_chosen_actions_times_steps_is_the_count(tmp_path: Path) -> None:
    """All steps of a rollout have the same number of chosen actions, so it does not matter how many are in a point."""
    with (
        started_service(tmp_path, episode_len=ROLLOUT) as service,
        client_of(service.address, rlx.Discrete(3)) as client,
    ):
        client.init(numbered(0))
        rewards, own, steps, points = np.ones(ENVIRONMENTS), np.zeros(ENVIRONMENTS, np.int64), 0, 0

        def is_pushed() -> bool:
            return bool(service.status.global_step == steps)

        for count in (4, 0, 1):
            for step in range(ROLLOUT):
                chosen = np.roll(np.arange(ENVIRONMENTS) < count, step)
                steps += ENVIRONMENTS
                client.step(rewards, numbered(steps), np.arange(ENVIRONMENTS) == step, actions=own, chosen=chosen)
            wait_until(is_pushed, "the rollout is pushed", PATIENCE)
            found = new_shares(service, points)
            assert {share * ENVIRONMENTS for share in found} == {count}
            points += len(found)
        client.reset(rewards, actions=own, chosen=[True, False, True, True])
        client.disconnect()
        assert new_shares(service, points) == [0.75]


@pytest.mark.parametrize("name", SPACES)
def test_replay_memory_has_the_actions_that_were_taken(name: str, processes: Processes, tmp_path: Path) -> None:
    memory = tmp_path / "replay"
    document = {
        "relaax-replay-server": {"checkpoint-dir": str(memory)},
        "algorithm": {"path": name, "network": {"dense": [4]}, "learning_starts": 1000, "n_step": 2},
    }
    config = tmp_path / "taken.yaml"
    config.write_text(json.dumps(document))  # JSON is YAML
    bind = ("--config", config, "--bind", "127.0.0.1:0")
    _, parameter_server = processes.start_server(*PARAMETER_SERVER, *bind)
    replay, replay_server = processes.start_server(*REPLAY_SERVER, *bind)
    services = ("--parameter-server", parameter_server, "--replay-server", replay_server)
    _, address = processes.start_server(*RLX_SERVER, *bind, *services)

    rng, rewards, taken, changed = np.random.default_rng(5), np.ones(ENVIRONMENTS), list[np.ndarray](), 0
    with client_of(address, SPACES[name]) as client:
        actions = client.init(numbered(0))
        for step in range(STEPS):
            chosen, ended = rng.random(ENVIRONMENTS) < 0.3, rng.random(ENVIRONMENTS) < 0.1
            own = rng.integers(2, 7, ENVIRONMENTS) if name == "apex" else rng.uniform(-1, 1, (ENVIRONMENTS, 2))
            taken.append(np.where(chosen if name == "apex" else chosen[:, None], own, actions).astype(np.float32))
            changed += int(np.count_nonzero((own != actions)[chosen]))
            actions = client.step(rewards, numbered(step + 1), ended, actions=own, chosen=chosen)
    wait_until(lambda: status_of(parameter_server).workers == 0, "the worker has ended", PATIENCE)
    assert replay.stop() == 0

    manager = CheckpointManager(LocalStore(memory / "shard-0-of-1"))
    columns = manager.load(manager.published()[0]).parts["table-0-00001"]
    steps, environments = columns["columns/observation"].astype(int).T
    expected = np.array(taken)[steps, environments]
    stored = columns["columns/action"] + (2 if name == "apex" else 0)  # it counts from 0
    assert changed > 30
    assert len(set(zip(steps, environments, strict=True))) == len(steps) == (STEPS - 1) * ENVIRONMENTS
    np.testing.assert_array_equal(stored.astype(np.float32), expected)
