"""Tests of serving from checkpoints: the newest one is loaded, newer ones follow, and training is refused."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete
from relaax.checkpoint import LocalStore
from relaax.client import Box as ClientBox
from relaax.client import Client, Failure
from relaax.client import Discrete as ClientDiscrete
from relaax.hosting.fingerprint import fingerprint
from relaax.parameters.interfaces import (
    ParameterServerError,
    ParameterServerUnavailable,
    Registration,
)
from relaax.server.rlx_server.workers.checkpoint_client import CHECK_SECONDS, CheckpointClient
from support.acting_checkpoints import KEYS, Checkpoints
from support.processes import Processes, wait_until
from support.programs import program
from support.s3_server import keys_file, s3_server
from support.service import RELAAX, RLX_SERVER

SPACES = {"observation_space": ClientBox(shape=(3,)), "action_space": ClientDiscrete(2)}


def registration(checkpoints: Checkpoints, session: str = "a") -> Registration:
    return Registration(checkpoints.fingerprint, session, environments=2)


def test_newest_checkpoint_is_loaded_and_newer_ones_follow(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    now = 0.0
    client = CheckpointClient(LocalStore(tmp_path), checkpoints.config, clock=lambda: now)
    with pytest.raises(ParameterServerUnavailable, match="contains no usable checkpoint"):
        client.register(registration(checkpoints))
    checkpoints.save(100, 0)
    now += CHECK_SECONDS
    registered = client.register(registration(checkpoints))
    assert (registered.parameters, registered.global_step) == (checkpoints.size, 100)
    other = CheckpointClient(LocalStore(tmp_path), checkpoints.config)
    assert not set(registered.actors) & set(other.register(registration(checkpoints, "b")).actors)
    first = client.pull()
    newer = checkpoints.save(200, 1)
    assert client.pull() is first, "the store is checked once per CHECK_SECONDS"
    now += CHECK_SECONDS
    second = client.pull()
    assert (second.global_step, second.version, client.global_step) == (200, first.version + 1, 200)
    assert (second.parameters != first.parameters).any()
    # If newer checkpoints are damaged or deleted, the parameters stay or fall back to an older checkpoint.
    checkpoints.save(300, 0)
    (damaged,) = (path for path in tmp_path.iterdir() if path.name.startswith("00000003"))
    (damaged / "shard-1.safetensors").write_bytes(b"nothing")
    shutil.rmtree(tmp_path / newer)
    now += CHECK_SECONDS
    assert client.pull().global_step in (200, 100)
    with pytest.raises(ParameterServerError, match="accepts no gradients"):
        client.push(None, 5)


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(100, 0)
    other = Checkpoints(tmp_path, lstm=True)
    with pytest.raises(ParameterServerError, match="algorithm.lstm is false in the checkpoint, true in"):
        CheckpointClient(LocalStore(tmp_path), other.config).register(registration(other))


def test_space_mismatch_names_the_spaces_of_both(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(100, 0)
    client_fingerprint = fingerprint("da3c", checkpoints.config, Box(shape=(6,)), Discrete(2))
    with pytest.raises(
        ParameterServerError,
        match=r"its observation_space is Box\(float32, \[3\]\), the client's is Box\(float32, \[6\]\)\.",
    ):
        CheckpointClient(LocalStore(tmp_path), checkpoints.config).register(
            Registration(client_fingerprint, "a", environments=1)
        )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[tuple[Path, Checkpoints]]:
    """Write a run directory with one checkpoint that takes action 1."""
    folder = tmp_path / "run"
    checkpoints = Checkpoints(folder / "checkpoints")
    checkpoints.save(100, 1)
    section = {"bind": "127.0.0.1:0", "heartbeat": 1}
    document = {"relaax-rlx-server": section, "algorithm": {"path": "da3c", **KEYS}}
    (folder / "configuration.yaml").write_text(json.dumps(document), encoding="utf-8")
    yield folder, checkpoints


def actions_of(address: str) -> list[int]:
    with Client(address, mode="exploit", retry_seconds=20.0, **SPACES) as client:
        return [client.init(np.zeros(3, np.float32)), client.send(0.0, np.ones(3, np.float32))]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_checkpoint_server_acts_and_refuses_training_clients(
    tmp_path: Path, run: tuple[Path, Checkpoints], start: str
) -> None:
    folder, checkpoints = run
    with Processes(tmp_path) as processes:
        server, address = processes.start_server(
            *RLX_SERVER, "--exploit", "--checkpoint", folder, "--set", f"rlx-server.worker_start={start}"
        )
        assert actions_of(address) == [1, 1]
        checkpoints.save(200, 0)
        assert actions_of(address) == [0, 0], "a new connection gets the newest checkpoint"
        with pytest.raises(Failure, match="only accepts clients that do not train: connect in exploit mode"):
            Client(address, retry_seconds=0, **SPACES).init(np.zeros(3, np.float32))
        assert server.stop(signal.SIGTERM) == 0, server.report()
    assert checkpoints.manager.published() == ["00000002-200", "00000001-100"]


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server", "relaax/checkpoint")
def test_open_connection_follows_newer_checkpoints(tmp_path: Path, run: tuple[Path, Checkpoints]) -> None:
    folder, checkpoints = run
    with Processes(tmp_path) as processes:
        _, address = processes.start_server(*RLX_SERVER, "--checkpoint", folder)
        with Client(address, mode="exploit", **SPACES) as client:
            state = np.zeros(3, np.float32)
            assert client.init(state) == 1
            checkpoints.save(200, 0)
            wait_until(lambda: client.send(0.0, state) == 0, "the newer checkpoint acts", interval=0.2)


@pytest.mark.slow
def test_checkpoint_in_s3_is_served(tmp_path: Path, run: tuple[Path, Checkpoints]) -> None:
    folder, _ = run
    with s3_server(tmp_path) as s3, Processes(tmp_path) as processes:
        place = f"s3://{s3.bucket()}/poles"
        options = ("--aws-endpoint", f"http://{s3.address}", "--aws-keys", keys_file(tmp_path))
        copied = processes.start(*RELAAX, "checkpoints", "copy", folder, place, *options)
        assert copied.wait(60) == 0, copied.report()
        _, address = processes.start_server(
            *RLX_SERVER, "--config", folder / "configuration.yaml", "--checkpoint", place, *options
        )
        assert actions_of(address) == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--exploit"], "--config is missing"),
        (["--checkpoint", "nowhere"], "--config is missing"),
        (["--config", "da3c_gym_cartpole", "--checkpoint", "s3://bucket"], "use s3://BUCKET/KEY"),
    ],
)
def test_unusable_checkpoint_options_exit_with_one_sentence(
    tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    with Processes(tmp_path) as processes:
        process = processes.start(*RLX_SERVER, *arguments, cwd=tmp_path)
        assert process.wait(60) == 2, process.report()
        assert sentence in process.stderr
        assert "Traceback" not in process.stderr


def test_environment_program_with_other_spaces_is_refused(tmp_path: Path, run: tuple[Path, Checkpoints]) -> None:
    folder, _ = run
    with Processes(tmp_path) as processes:
        _, address = processes.start_server(*RLX_SERVER, "--checkpoint", folder)
        done = program("OpenAI_Gym", address, "CartPole-v1", "1", "--exploit", "--episodes", "1")
        assert done.returncode == 2, "CartPole has other spaces"
        assert "is of another model" in done.stderr
