from __future__ import annotations

import json
import re
from pathlib import Path

import grpc
import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.optim.optimizers import Adam, RMSProp
from relaax.parameters.interfaces import EXPLOIT, TrainingEnded
from relaax.rlx.messages import MAX_ENVIRONMENTS
from relaax.server.address import AddressError
from relaax.server.command.termination import Reason
from relaax.server.parameter_server.service.actors import MAX_KEPT
from relaax.server.parameter_server.shard.model import ModelRefused
from support.disks import Disk
from support.parameter_servers import Models, fingerprint, gradient, parameter_client, registration, running
from support.processes import wait_until
from support.service import status_of


def test_training_state_is_restored_after_a_restart(tmp_path: Path) -> None:
    models = Models(RMSProp(0.9, 0.1), learning_rate=0.5, end=1000)
    with running(models, tmp_path) as first, parameter_client(first.address) as client:
        client.register(registration(session_id="a", environments=2, frame_skip=4))
        client.pull()
        client.metrics.episode(12.0, 3)
        client.push(gradient(1, -2), env_steps=10)
        parameters = first.parameters.tobytes()
        first.stop()
    assert first.ended == (Reason.TERMINATED, True)
    with (
        running(models, tmp_path) as second,
        parameter_client(second.address) as client,
        parameter_client(second.address) as other,
    ):
        assert second.parameters.tobytes() == parameters
        status = second.core.status()
        assert (status.global_step, status.frames, status.updates) == (10, 40, 1)
        assert (status.episodes, status.mean_return_100) == (1, 12.0)
        assert second.core.incarnation > first.core.incarnation
        assert other.register(registration(session_id="b")).actors == (2,)
        assert client.register(registration(session_id="a", environments=2)).actors == (0, 1)


def test_unchanged_model_is_not_saved_again(tmp_path: Path) -> None:
    with running(directory=tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.push(None, env_steps=1)
    with running(directory=tmp_path):
        pass
    assert CheckpointManager(LocalStore(tmp_path)).published() == ["00000001-1"]


def test_manifest_holds_no_secret(tmp_path: Path) -> None:
    described = json.loads(fingerprint())
    described["configuration"] = {"api_token": "very-secret", "gamma": 0.5}
    with running(directory=tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration(fingerprint=json.dumps(described)))
        client.push(None, env_steps=1)
        server.stop()
    manifest = json.loads((tmp_path / "00000001-1" / "manifest.json").read_text())
    assert manifest["fingerprint"]["configuration"] == {"api_token": "(hidden)", "gamma": 0.5}


def test_manifest_describes_the_checkpoint(tmp_path: Path) -> None:
    with running(directory=tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.pull()
        client.push(gradient(1), env_steps=10)
        incarnation = server.core.incarnation
        server.stop()
    manifest = json.loads((tmp_path / "00000001-10" / "manifest.json").read_text())
    assert manifest["global_step"] == manifest["frames"] == 10
    assert (manifest["incarnation"], manifest["updates"]) == (incarnation, 1)
    assert manifest["fingerprint"] == json.loads(fingerprint())
    shard = manifest["shards"][0]
    assert (shard["start"], shard["end"], shard["version"]) == (0, 8, 1)
    assert list(shard["ledger"].values()) == [[1, 0, 0]]
    assert set(manifest["parts"]["shard-0"]) == {"key", "bytes", "sha256"}


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (fingerprint(algorithm="ascent"), 'its algorithm is "descent", this server\'s is "ascent"'),
        (fingerprint(size=9), 'its observation_space is {"size": 8}, this server\'s is {"size": 9}'),
    ],
)
def test_checkpoint_of_another_model_is_refused(tmp_path: Path, other: str, sentence: str) -> None:
    with running(directory=tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.push(None, env_steps=1)
    checkpoint = CheckpointManager(LocalStore(tmp_path)).restore()
    assert checkpoint is not None
    with running() as fresh:
        with pytest.raises(ModelRefused, match=sentence):
            fresh.core.resume(checkpoint, other)
        assert fresh.core.model is None
        fresh.core.resume(checkpoint, fingerprint(gamma=0.5))
        assert fresh.core.global_step == 1


def test_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    with running(Models(RMSProp()), tmp_path) as server, parameter_client(server.address) as client:
        client.register(registration())
        client.push(None, env_steps=1)
    checkpoint = CheckpointManager(LocalStore(tmp_path)).restore()
    assert checkpoint is not None
    with running(Models(Adam())) as fresh, pytest.raises(ModelRefused, match="does not fit this configuration"):
        fresh.core.resume(checkpoint, fingerprint())


def test_end_of_training_saves_a_checkpoint_and_ends(tmp_path: Path) -> None:
    with running(Models(max_global_step=10), tmp_path) as server:
        with parameter_client(server.address) as client:
            client.register(registration())
            client.pull()
            with pytest.raises(TrainingEnded):
                client.push(gradient(1), env_steps=10)
        assert server.join() == (Reason.FINISHED, True)
    assert CheckpointManager(LocalStore(tmp_path)).published() == ["00000001-10"]
    np.testing.assert_array_equal(server.parameters, -gradient(1))
    # With more steps allowed, training resumes.
    with running(Models(max_global_step=20), tmp_path) as server, parameter_client(server.address) as client:
        assert client.register(registration()).global_step == 10


def test_finished_model_serves_exploit_workers(tmp_path: Path) -> None:
    with running(Models(max_global_step=1), tmp_path) as server:
        with parameter_client(server.address) as client:
            client.register(registration())
            with pytest.raises(TrainingEnded):
                client.push(None, env_steps=1)
        assert server.join() == (Reason.FINISHED, True)
    with running(Models(max_global_step=1), tmp_path) as server:
        with parameter_client(server.address) as client, pytest.raises(TrainingEnded):
            client.register(registration())
        with parameter_client(server.address) as client:
            client.register(registration(purpose=EXPLOIT))
            assert client.pull().global_step == 1
            client.metrics.scalar("exploit/episode_return", 1.0)
            client.flush()
        server.stop(Reason.INTERRUPTED)
        assert server.ended == (Reason.INTERRUPTED, True)


def test_port_in_use_is_refused() -> None:
    with running() as server, pytest.raises(AddressError, match=f"cannot listen on {server.address}"):  # noqa: SIM117
        with running(address=server.address):
            pass


def test_localhost_is_refused_if_one_address_is_in_use() -> None:
    """gRPC binds the free addresses and does not report the others."""
    with running() as server:
        port = server.address.rpartition(":")[2]
        sentence = f"cannot listen on localhost:{port}: 127.0.0.1:{port}: Address already in use; use another port"
        with pytest.raises(AddressError, match=sentence), running(address=f"localhost:{port}"):
            pass


def test_stopped_server_refuses_connections() -> None:
    with running() as server:
        server.stop(Reason.INTERRUPTED)
        assert server.ended == (Reason.INTERRUPTED, True)
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.FutureTimeoutError):
            grpc.channel_ready_future(channel).result(timeout=0.2)


@pytest.mark.slow
@pytest.mark.checks("relaax/server/parameter_server")
def test_actor_indices_of_100_full_sessions_stay_small(tmp_path: Path) -> None:
    with running(directory=tmp_path) as server, parameter_client(server.address) as honest:
        for number in range(100):
            with parameter_client(server.address) as client:
                registered = client.register(registration(session_id=f"s{number}", environments=MAX_ENVIRONMENTS))
                client.pull()
                client.push(None, env_steps=1)
            assert len(registered.actors) == len(set(registered.actors)) == MAX_ENVIRONMENTS
            assert max(registered.actors) < 2 * MAX_KEPT, "indices of disconnected sessions are reused"
        assert honest.register(registration(session_id="honest", environments=2)).actors[0] < 2 * MAX_KEPT
        server.stop()
    (manifest,) = tmp_path.rglob("manifest.json")
    assert manifest.stat().st_size < 20_000


def test_status_has_the_error_of_a_late_checkpoint(disk: Disk) -> None:
    with (
        running(directory=disk.path / "checkpoints", interval=0.05) as server,
        parameter_client(server.address) as client,
    ):
        client.register(registration())
        client.push(None, env_steps=1)
        wait_until(lambda: status_of(server.address).checkpoint_global_step == 1, "a checkpoint is saved")
        disk.fill()
        client.push(None, env_steps=1)
        wait_until(lambda: status_of(server.address).checkpoint_error, "the next checkpoint is late")
        status = status_of(server.address)
        assert (status.global_step, status.checkpoint_global_step) == (2, 1)
        for error in (status.checkpoint_error, server.server.save_error):  # each attempt writes another file
            assert error and re.fullmatch(r"cannot write .*/checkpoints/.*: No space left on device", error)
        disk.free()
        wait_until(lambda: not status_of(server.address).checkpoint_error, "the late checkpoint is saved")
        assert status_of(server.address).checkpoint_global_step == 2
