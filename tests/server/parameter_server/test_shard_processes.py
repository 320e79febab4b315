"""Shards as processes: killed, restarted, interrupted and refused."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.parameters.client import ParameterClient
from relaax.parameters.interfaces import ParameterServerUnavailable, Pushed, TrainingEnded
from relaax.server.parameter_server.main import app
from relaax.transport.segments import SUPPORTED
from support.parameter_server_processes import start, trained, worker, write_configuration
from support.parameter_servers import parameter_client
from support.processes import Processes
from support.refusals import refusal
from support.shard_processes import ShardProcesses

pytestmark = pytest.mark.checks("relaax/server", "relaax/checkpoint", "relaax/parameters", "relaax/transport")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_configuration(tmp_path)


def checkpoints(config: Path) -> CheckpointManager:
    return CheckpointManager(LocalStore(config.parent / "from-the-file"))


def push(client: ParameterClient, size: int) -> Pushed:
    return client.push(np.ones(size, np.float32), 10)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_training_continues_after_a_killed_shard_restarts(processes: Processes, config: Path, killed: int) -> None:
    shards = ShardProcesses(processes, config, 2, ("--set", "relaax-parameter-server.checkpoint_interval=0.2"))
    with parameter_client(shards.addresses, unavailable_after=200.0, transport="auto") as client:
        client.register(worker(config))
        assert client.shares_memory == SUPPORTED
        size = len(trained(client, 3))
        shards.running[killed].kill()
        # The next push waits for the shard. All shards are then at a published checkpoint.
        pushed: list[Pushed] = []
        thread = threading.Thread(target=lambda: pushed.append(push(client, size)))
        thread.start()
        shards.restart(killed)
        thread.join(120)
        assert pushed[0].discarded == "incarnation"
        published = {int(name.split("-")[1]) for name in checkpoints(config).published()}
        assert pushed[0].global_step - 10 in published | {0}
        after = push(client, size)
        assert (after.discarded, after.global_step) == (None, pushed[0].global_step + 10)
        assert client.shares_memory == SUPPORTED, "the client shares memory with all shards again"
    assert shards.signal_all(signal.SIGTERM) == [0, 0]
    restored = checkpoints(config).restore()
    assert restored is not None
    assert restored.manifest["global_step"] == after.global_step


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_signal_to_all_shards_at_once_loses_no_update(
    processes: Processes, config: Path, number: int, code: int
) -> None:
    shards = ShardProcesses(processes, config, 3)
    with parameter_client(shards.addresses) as client:
        client.register(worker(config))
        acknowledged = trained(client, 4)
        assert set(shards.signal_all(number)) <= {0, code}
    restored = checkpoints(config).restore()
    assert restored is not None
    assert (restored.manifest["global_step"], len(restored.manifest["shards"])) == (40, 3)
    found = np.concatenate([restored.parts[f"shard-{index}"]["parameters"] for index in range(3)])
    assert found.tobytes() == acknowledged.tobytes()
    # A single server can resume from the checkpoint.
    _, address = start(processes, config)
    with parameter_client(address) as client:
        assert client.register(worker(config)).global_step == 40
        assert client.pull().parameters.tobytes() == acknowledged.tobytes()


@pytest.mark.slow
def test_restart_of_one_shard_loses_no_update(processes: Processes, config: Path) -> None:
    shards = ShardProcesses(processes, config, 2)
    with parameter_client(shards.addresses, unavailable_after=200.0) as client:
        client.register(worker(config))
        acknowledged = trained(client, 2)
        assert shards.running[1].stop() == 0
        shards.restart(1)
        assert client.pull().parameters.tobytes() == acknowledged.tobytes()
        assert client.global_step == 20
    assert shards.running[0].returncode is None


@pytest.mark.slow
def test_error_names_the_shard_that_stays_unavailable(processes: Processes, config: Path) -> None:
    shards = ShardProcesses(processes, config, 2)
    with parameter_client(shards.addresses, unavailable_after=1.0) as client:
        client.register(worker(config))
        size = len(trained(client, 1))
        shards.running[1].kill()
        with pytest.raises(ParameterServerUnavailable, match=r"was unavailable for 1 s"):
            push(client, size)
    with (
        parameter_client(shards.addresses, unavailable_after=0.5) as client,
        pytest.raises(ParameterServerUnavailable, match="shard 1 of 2 is unavailable: waiting for it"),
    ):
        client.register(worker(config))


@pytest.mark.slow
def test_end_of_training_ends_all_shards(processes: Processes, config: Path) -> None:
    shards = ShardProcesses(processes, config, 2)
    with parameter_client(shards.addresses) as client:
        client.register(worker(config))
        with pytest.raises(TrainingEnded):
            trained(client, 1, env_steps=1000)
    assert [running.wait(60) for running in shards.running] == [0, 0]
    assert checkpoints(config).published()[0].split("-")[1] == "1000"


@pytest.mark.slow
def test_shard_may_start_before_shard_0(processes: Processes, config: Path) -> None:
    first, address = start(processes, config, "--shard", "0/2")
    assert first.stop() == 0
    second = processes.start(
        "relaax-parameter-server",
        "--config",
        config,
        "--bind",
        "127.0.0.1:0",
        "--shard",
        "1/2",
        "--first-shard",
        address,
    )
    other = second.wait_for_address()
    with parameter_client([address, other], unavailable_after=200.0) as client:
        start(processes, config, "--shard", "0/2", "--bind", address)
        assert client.register(worker(config)).global_step == 0


def test_shard_with_another_configuration_is_refused(processes: Processes, config: Path) -> None:
    _, address = start(processes, config, "--shard", "0/2")
    command = ("relaax-parameter-server", "--config", config, "--bind", "127.0.0.1:0", "--first-shard", address)
    other = processes.start(*command, "--shard", "1/2", "--seed", "5")
    assert other.wait(120) == 2
    assert "its configuration differs from shard 0: seed: 5 at shard 1, 0 at shard 0" in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.parametrize(
    ("shard", "sentence"),
    [("2/2", "must be from 0 to 1 (there are 2 shards)"), ("two", "'two' is not I/K, such as 0/4"), ("0/0", "shards")],
)
def test_invalid_shard_argument_is_refused(config: Path, shard: str, sentence: str) -> None:
    for check in ((), ("--check-config",)):
        assert sentence in refusal(app, "--config", config, "--shard", shard, *check)
