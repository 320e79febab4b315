"""The command `relaax-parameter-server` as a process."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.metrics.writer import do_without_tensorflow
from relaax.parameters.interfaces import ParameterServerError, TrainingEnded
from relaax.server.parameter_server.main import app
from support.disks import Disk
from support.parameter_server_processes import start, trained, worker, write_configuration
from support.parameter_servers import parameter_client
from support.processes import Processes, project_command, wait_until
from support.refusals import refusal

pytestmark = pytest.mark.checks("relaax/server", "relaax/checkpoint", "relaax/parameters", "relaax/transport")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_configuration(tmp_path)


def published(folder: Path) -> list[str]:
    return CheckpointManager(LocalStore(folder)).published()


def newest_step(folder: Path) -> int:
    return int(published(folder)[0].split("-")[1])


@pytest.mark.slow
def test_push_after_a_restart_gives_the_same_bytes(processes: Processes, config: Path, tmp_path: Path) -> None:
    arguments = ("--checkpoint-dir", str(tmp_path / "c"), "--metrics-dir", str(tmp_path / "m"), "--seed", "3")
    first, address = start(processes, config, *arguments)
    with parameter_client(address) as client:
        client.register(worker(config))
        client.metrics.episode(7.0, 10)
        before = trained(client, 5)
        assert first.stop(signal.SIGTERM) == 0
    assert published(tmp_path / "c") == ["00000001-50-f1"]
    assert not (tmp_path / "from-the-file").exists()
    assert len(first.lines) == 1
    # Two servers resume from the checkpoint. If their slots differed, the next push would give different bytes.
    after = []
    for _ in range(2):
        second, address = start(processes, config, *arguments)
        with parameter_client(address) as client:
            client.register(worker(config))
            assert client.pull().parameters.tobytes() == before.tobytes()
            assert client.global_step == 50
            after.append(trained(client, 1, seed=1).tobytes())
        second.kill()
    assert after[0] == after[1] != before.tobytes()
    assert list((tmp_path / "m").glob("events.out.tfevents.*"))


@pytest.mark.slow
def test_metrics_continue_at_the_restored_step_after_a_kill(processes: Processes, config: Path, tmp_path: Path) -> None:
    arguments = ("--checkpoint-dir", str(tmp_path / "c"), "--metrics-dir", str(tmp_path / "m"))
    for pushes, reached in ((5, 50), (7, 120), (2, 70)):
        server, address = start(processes, config, *arguments)
        with parameter_client(address) as client:
            client.register(worker(config))
            trained(client, pushes)
            wait_until(lambda reached=reached: reached in steps_shown(tmp_path / "m"), f"a point at step {reached}")  # type: ignore[misc]
        if reached == 50:
            assert server.stop(signal.SIGTERM) == 0  # saves the checkpoint from which the two later servers resume
        else:
            server.kill()
    shown = steps_shown(tmp_path / "m")
    assert shown == sorted(shown)
    assert 50 in shown
    assert shown[-1] == 70


def steps_shown(folder: Path) -> list[int]:
    """Return the steps of the points that TensorBoard shows."""
    if not folder.is_dir():
        return []
    do_without_tensorflow()
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    shown = EventAccumulator(str(folder), size_guidance={SCALARS: 0})
    shown.Reload()
    name = "workers/connected"
    return [event.step for event in shown.Scalars(name)] if name in shown.Tags()["scalars"] else []


def test_repeated_interrupts_still_save_a_checkpoint(processes: Processes, config: Path) -> None:
    server, address = start(processes, config)
    with parameter_client(address) as client:
        client.register(worker(config))
        trained(client, 2)
    for _ in range(3):
        server.send_signal(signal.SIGINT)
    assert server.wait() == 130
    assert published(config.parent / "from-the-file") == ["00000001-20-f1"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_signal_ends_the_process_while_the_algorithm_loads(
    processes: Processes, config: Path, number: int, code: int
) -> None:
    algorithm = config.parent / "slow.py"
    algorithm.write_text("print('loading')\nimport time\ntime.sleep(600)\n")
    server = processes.start("relaax-parameter-server", "--config", config, "--set", f"algorithm.path={algorithm}")
    server.wait_for_line("loading")
    assert server.stop(number) == code
    assert "Traceback" not in server.stderr


@pytest.mark.slow
def test_damaged_newest_checkpoint_is_logged_and_skipped(processes: Processes, config: Path) -> None:
    folder = config.parent / "from-the-file"
    for _ in range(2):
        server, address = start(processes, config)
        with parameter_client(address) as client:
            client.register(worker(config))
            trained(client, 1)
        server.stop()
    assert published(folder) == ["00000002-20-f2", "00000001-10-f1"]
    part = folder / "00000002-20-f2" / "shard-0.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    server, address = start(processes, config)
    with parameter_client(address) as client:
        assert client.register(worker(config)).global_step == 10
    assert f"checkpoint 00000002-20-f2 in {folder} is damaged and skipped" in server.stderr


@pytest.mark.slow
def test_kill_soon_after_the_start_leaves_a_checkpoint(processes: Processes, config: Path) -> None:
    # Run the real server with an interval of 1000 s. Early checkpoints come 600 times as often: each minute is 0.1 s.
    code = """
import sys
from relaax.server.checkpoints import checkpointing
from relaax.server.parameter_server.main import main
checkpointing.EARLY = tuple(seconds / 600 for seconds in checkpointing.EARLY)
sys.argv[0] = "relaax-parameter-server"
main()
"""
    server = processes.start_python(code, "--config", str(config))
    with parameter_client(server.wait_for_address()) as client:
        client.register(worker(config))
        trained(client, 1)
        folder = config.parent / "from-the-file"
        wait_until(
            lambda: folder.is_dir() and published(folder) and newest_step(folder) == 10, "an early checkpoint is saved"
        )
        server.kill()
    assert CheckpointManager(LocalStore(folder)).restore() is not None


@pytest.mark.slow
def test_kill_during_a_save_leaves_a_complete_checkpoint(processes: Processes, config: Path) -> None:
    # The server saves all the time during training, so that sooner or later a kill interrupts a save.
    random = np.random.default_rng(0)
    folder = config.parent / "from-the-file"
    fast = ("--set", "parameter-server.checkpoint_interval=0.001", "--set", "algorithm.max_global_step=1000000")
    registration = worker(config, fast[3::4])
    reached = 0
    for _ in range(3):
        server, address = start(processes, config, *fast)
        with parameter_client(address) as client:
            resumed = client.register(registration).global_step
            assert resumed >= reached
            steps = {resumed + 10 * i for i in range(1, 2000)}
            trained(client, int(random.integers(20, 60)))
            wait_until(lambda: len(published(folder)) > 1, "checkpoints are written")
            wait_until(lambda before=resumed: newest_step(folder) > before, "one of them is new")  # type: ignore[misc]
            before = client.global_step
            server.kill()
        checkpoint = CheckpointManager(LocalStore(folder)).restore()
        assert checkpoint is not None
        reached = checkpoint.manifest["global_step"]
        assert reached in steps
        assert reached <= before
    assert reached > 0


def test_worker_continues_after_the_server_is_restarted(processes: Processes, config: Path) -> None:
    server, address = start(processes, config)
    with parameter_client(address) as client:
        client.register(worker(config))
        size = len(trained(client, 3))
        server.kill()
        start(processes, config, "--bind", address)
        pushed = client.push(np.ones(size, np.float32), env_steps=5)
        assert (pushed.discarded, pushed.global_step) == ("incarnation", 5)
        assert client.push(np.ones(size, np.float32), env_steps=5).discarded is None


@pytest.mark.slow
def test_end_of_training_ends_the_process(processes: Processes, config: Path) -> None:
    server, address = start(processes, config)
    with parameter_client(address) as client:
        client.register(worker(config))
        with pytest.raises(TrainingEnded):
            trained(client, 2, env_steps=500)
    assert server.wait() == 0
    assert published(config.parent / "from-the-file") == ["00000001-1000-f1"]


def test_worker_with_another_configuration_is_refused(processes: Processes, config: Path) -> None:
    _, address = start(processes, config)
    with (
        parameter_client(address) as client,
        pytest.raises(ParameterServerError, match=r"rewards_gamma: 0\.5 at the worker, 0\.99 at the param"),
    ):
        client.register(worker(config, ("algorithm.rewards_gamma=0.5",)))
    with parameter_client(address) as client:
        client.register(worker(config))


@pytest.mark.slow
def test_checkpoint_of_another_network_is_refused(processes: Processes, config: Path) -> None:
    server, address = start(processes, config)
    with parameter_client(address) as client:
        client.register(worker(config))
        trained(client, 1)
    server.stop()
    changed = ("--set", "algorithm.network.dense=[17]", "--set", "algorithm.optimizer=adam")
    other = processes.start("relaax-parameter-server", "--config", config, *changed)
    assert other.wait(120) == 2
    assert (
        'algorithm.optimizer is "rms_prop" in the checkpoint, "adam" in the configuration; '
        "algorithm.network.dense is [16] in the checkpoint, [17] in the configuration. "
        "Use the values that it was made with, or start a new training at another checkpoint location (relaax run"
    ) in other.stderr
    assert "Traceback" not in other.stderr
    free = ("--set", "algorithm.initial_learning_rate=0.5", "--set", "algorithm.max_global_step=2000")
    _, address = start(processes, config, *free)
    with parameter_client(address) as client:
        client.register(worker(config, (free[1], free[3])))
        assert client.global_step == 10


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--bind", "0.0.0.0:0"], "--allow-anonymous"),
        (["--bind", "nonsense"], "HOST:PORT"),
        (["--set", "algorithm.entropy_bta=1"], "did you mean 'entropy_beta'"),
        (["--set", "parameter-server.checkpoint-dri=x"], "did you mean"),
        (["--log-level", "LOUD"], "log_level"),
        (["--device", "gpu:99"], "relaax-parameter-server.device: gpu:99 was asked for"),
        (["--device", "gpu:first"], "a device is cpu, gpu (the first one) or gpu:I"),
    ],
)
def test_unusable_argument_is_named_in_the_error(config: Path, arguments: list[str], sentence: str) -> None:
    assert sentence in refusal(app, "--config", config, *arguments)


def test_invalid_argument_exits_with_code_2(processes: Processes, config: Path) -> None:
    server = processes.start("relaax-parameter-server", "--config", config, "--bind", "nonsense")
    assert server.wait(120) == 2
    assert "HOST:PORT" in server.stderr
    assert "Traceback" not in server.stderr
    assert server.lines == []


@pytest.mark.slow
def test_missing_gpu_is_refused_with_tensorflow_loaded(processes: Processes, config: Path) -> None:
    server = processes.start("relaax-parameter-server", "--config", config, "--device", "gpu:99")
    assert server.wait(120) == 2
    assert "relaax-parameter-server.device: gpu:99 was asked for" in server.stderr
    assert "Traceback" not in server.stderr


def test_port_in_use_is_refused(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot listen on {address}" in refusal(app, "--config", config, "--bind", address)


def test_manifest_has_the_seed_the_configuration_and_versions(processes: Processes, config: Path) -> None:
    server, address = start(processes, config, "--seed", "5")
    with parameter_client(address) as client:
        client.register(worker(config))
        trained(client, 1)
    server.stop()
    manifest = json.loads((config.parent / "from-the-file" / "00000001-10-f1" / "manifest.json").read_text())
    assert manifest["seed"] == 5
    assert manifest["configuration"]["algorithm"]["network"]["dense"] == [16]
    assert {"python", "relaax", "grpc", "numpy"} <= set(manifest["versions"])
    assert "tensorflow" not in manifest["versions"], "TensorFlow was not used"
    assert manifest["fingerprint"]["algorithm"] == "da3c"


@pytest.mark.slow
def test_full_disk_at_the_last_checkpoint_exits_with_code_1(processes: Processes, config: Path, disk: Disk) -> None:
    server, address = start(processes, config, "--checkpoint-dir", str(disk.path / "c"))
    with parameter_client(address) as client:
        client.register(worker(config))
        trained(client, 1)
        disk.fill()
        assert server.stop(signal.SIGTERM, 120) == 1
    reason = server.lines[-1].partition("relaax-parameter-server last checkpoint failed: ")[2]
    assert reason.startswith(f"cannot write {disk.path}/c/")
    assert reason.endswith("No space left on device")
    assert f"the last checkpoint could not be written: {reason}; updates since the previous checkpoint" in server.stderr
    assert "Traceback" not in server.stderr


def test_hangup_saves_a_checkpoint_and_ends_the_server(processes: Processes, config: Path, tmp_path: Path) -> None:
    server, address = start(processes, config, "--checkpoint-dir", str(tmp_path / "c"))
    with parameter_client(address) as client:
        client.register(worker(config))
        trained(client, 1)
        assert server.stop(signal.SIGHUP) == 0
    assert newest_step(tmp_path / "c") == 10


@pytest.mark.slow
def test_server_under_nohup_ignores_a_hangup(processes: Processes, config: Path) -> None:
    server, address = processes.start_server("nohup", project_command("relaax-parameter-server"), "--config", config)
    server.send_signal(signal.SIGHUP)
    with parameter_client(address) as client:
        client.register(worker(config))
        trained(client, 1)
    assert server.stop(signal.SIGTERM) == 0
