"""A policy that is exported after a short training acts as the service did in exploit mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relaax.policy
from relaax.client import Client
from relaax.rlx import Box, Discrete, Space
from support.processes import Processes
from support.service import RELAAX, started_service

pytestmark = pytest.mark.checks("relaax/policy", "relaax/algorithm_base", "relaax/evaluation")

OBSERVATION = Box(shape=(3,))
EPISODES, LENGTH = 4, 12


def observations_of(seed: int) -> list[list[npt.NDArray[Any]]]:
    """Return the observations of each episode; they do not depend on the actions."""
    rng = np.random.default_rng(seed)
    return [[rng.normal(1, 3, 3).astype(np.float32) for _ in range(LENGTH)] for _ in range(EPISODES)]


def play(client: Client, seed: int) -> list[Any]:
    """Return the actions of the service for the observations of `seed`."""
    actions = []
    for observations in observations_of(seed):
        actions.append(client.init(observations[0]))
        actions += [client.send(float(state[0] > 0), state) for state in observations[1:]]
        client.reset(1.0)
    return actions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "action", "keys"),
    [
        pytest.param("da3c", Discrete(3), {"initial_learning_rate": 0.05}, id="da3c"),
        pytest.param(
            *("da3c", Discrete(3), {"lstm": True, "normalize_observations": True, "normalize_rewards": "scale"}),
            id="lstm",
        ),
        pytest.param(
            *("da3c_cont", Box(-2, 2, (2,)), {"initial_learning_rate": 0.001, "episode_len": 5}),
            id="da3c_cont",
        ),
        pytest.param("ppo", Discrete(3), {"episode_len": 8}, id="ppo"),
    ],
)
def test_exported_policy_acts_as_the_service_did(
    tmp_path: Path, processes: Processes, algorithm: str, action: Space, keys: dict[str, Any]
) -> None:
    spaces = {"observation_space": OBSERVATION, "action_space": action}
    with started_service(tmp_path, path=algorithm, **keys) as service:
        with Client(service.address, **spaces) as client:
            for seed in range(3):
                play(client, seed)
        updates = service.wait_for_no_workers().updates
        with Client(service.address, **spaces, mode="exploit") as client:
            expected = play(client, 99)
        assert service.parameter_server.stop(timeout=60) == 0, service.parameter_server.report()
    file = tmp_path / "policy.safetensors"
    export = processes.start(*RELAAX, "checkpoints", "export", tmp_path, file)
    assert export.wait(60) == 0, export.report()
    policy = relaax.policy.load(file)
    assert updates > 10
    assert policy.global_step > 100
    actions = [
        policy.act(state, first=step == 0)
        for observations in observations_of(99)
        for step, state in enumerate(observations)
    ]
    np.testing.assert_array_equal(actions, expected)
    if algorithm == "da3c_cont":  # no action is at a bound, and each observation has its own action
        assert np.abs(actions).max() < 2
        assert len(np.unique(actions, axis=0)) == EPISODES * LENGTH
