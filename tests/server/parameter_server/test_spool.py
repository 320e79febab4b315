"""S3 is unreachable when a server ends: the server retries, and keeps a copy for its next start."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from relaax.checkpoint import CheckpointManager
from support.parameter_server_processes import start, trained, worker, write_configuration
from support.parameter_servers import parameter_client
from support.processes import Processes, Running, wait_until
from support.s3_server import S3Proxy, S3Server, keys_file
from support.shard_processes import ShardProcesses

pytestmark = pytest.mark.checks(
    "relaax/checkpoint",
    "relaax/server/checkpoints",
    "relaax/server/command/termination.py",
    "relaax/server/parameter_server/command",
)

# The real server; its first argument is the time limit of the last checkpoint in seconds.
SERVER = """
import sys
from relaax.server.parameter_server import main
from relaax.server.parameter_server.command import server
server.LAST_SECONDS = float(sys.argv.pop(1))
sys.argv[0] = "relaax-parameter-server"
main.main()
"""


class Deployment:
    """A bucket behind the proxy, a spool, and servers that use them."""

    def __init__(self, processes: Processes, s3: S3Server, proxy: S3Proxy, tmp_path: Path) -> None:
        self.processes = processes
        self.config = write_configuration(tmp_path)
        self.spool = tmp_path / "spool"
        self.bucket = s3.bucket()
        self.manager = CheckpointManager(s3.store(self.bucket))
        self.arguments = (
            *("--checkpoint-aws-s3", self.bucket, "some/run", "--aws-keys", str(keys_file(tmp_path))),
            *("--aws-endpoint", proxy.url, "--set", f"parameter-server.checkpoint_spool={self.spool}"),
        )

    def trained_server(self, seconds: float, pushes: int, *more: str) -> Running:
        """Start a server and push gradients. `seconds` is the time limit of its last checkpoint."""
        server = self.processes.start_python(SERVER, str(seconds), "--config", str(self.config), *self.arguments, *more)
        with parameter_client(server.wait_for_address()) as client:
            client.register(worker(self.config))
            trained(client, pushes)
        return server

    def resumed_at(self) -> tuple[int, str]:
        """Start and stop a server; return the global step that it resumed from, and its log."""
        server, address = start(self.processes, self.config, *self.arguments)
        with parameter_client(address) as client:
            step = client.register(worker(self.config)).global_step
        assert server.stop(timeout=120) == 0, server.report()
        return step, server.stderr

    def copies(self) -> list[str]:
        return sorted(path.parent.name for path in self.spool.rglob("manifest.json"))


@pytest.fixture
def deployment(processes: Processes, s3: S3Server, proxy: S3Proxy, tmp_path: Path) -> Deployment:
    return Deployment(processes, s3, proxy, tmp_path)


@pytest.mark.slow
def test_last_checkpoint_reaches_s3_that_recovers_in_time(deployment: Deployment, proxy: S3Proxy) -> None:
    server = deployment.trained_server(600, 2)
    proxy.fail("reset")
    server.send_signal(signal.SIGTERM)
    wait_until(deployment.copies, "a copy is kept", timeout=120)
    before = len(proxy.requests)
    wait_until(lambda: len(proxy.requests) > before + 12, "the server retries more than three times", timeout=120)
    proxy.heal()
    assert server.wait(120) == 0, server.report()
    assert [name.split("-")[1] for name in deployment.manager.published()] == ["20"]
    assert not list(deployment.spool.iterdir()), "the copy is removed"


@pytest.mark.slow
def test_next_start_uses_the_copy_of_the_last_checkpoint(deployment: Deployment, proxy: S3Proxy) -> None:
    server = deployment.trained_server(1, 3)
    proxy.fail("reset")
    assert server.stop(timeout=180) == 1, server.report()
    assert "the last checkpoint, at global step 30, is kept in " in server.stderr
    assert "this machine keeps it for the next start" in server.stderr
    assert "Traceback" not in server.stderr
    assert deployment.manager.published() == []
    assert deployment.copies() == ["00000001-30-f1"]
    proxy.heal()
    step, log = deployment.resumed_at()
    assert step == 30
    assert "checkpoint 00000001-30-f1, which was kept in " in log
    assert deployment.manager.published() == ["00000001-30-f1"]
    assert not list(deployment.spool.iterdir())
    assert deployment.resumed_at()[0] == 30


@pytest.mark.slow
def test_several_shards_retry_until_s3_recovers(deployment: Deployment, proxy: S3Proxy) -> None:
    shards = ShardProcesses(deployment.processes, deployment.config, 2, deployment.arguments)
    with parameter_client(shards.addresses) as client:
        client.register(worker(deployment.config))
        trained(client, 2)
    proxy.fail("reset")
    before = len(proxy.requests)
    shards.running[0].send_signal(signal.SIGTERM)
    wait_until(lambda: len(proxy.requests) > before + 40, "the shards retry more than three times", timeout=120)
    proxy.heal()
    assert [running.wait(120) for running in shards.running] == [0, 0], shards.running[0].report()
    assert [name.split("-")[1] for name in deployment.manager.published()] == ["20"]


@pytest.mark.slow
def test_server_killed_while_it_retries_leaves_a_copy(deployment: Deployment, proxy: S3Proxy) -> None:
    """By default a stopped container has ten seconds, and S3 has been unreachable for longer."""
    server = deployment.trained_server(600, 1, "--set", "parameter-server.checkpoint_interval=0.2")
    wait_until(deployment.manager.published, "the first checkpoint is in the bucket", timeout=120)
    fault = proxy.fail("reset")
    with parameter_client(server.wait_for_address()) as client:
        client.register(worker(deployment.config))
        trained(client, 3)
    wait_until(lambda: "is late: cannot" in server.stderr, "S3 is unreachable", timeout=120)
    fault.kind = "stall"
    server.send_signal(signal.SIGTERM)
    wait_until(deployment.copies, "the copy does not wait for an attempt to fail", timeout=120)
    server.kill()
    proxy.heal()
    assert deployment.resumed_at()[0] == 40


@pytest.mark.slow
def test_superseded_or_damaged_copy_is_kept_but_not_used(deployment: Deployment, proxy: S3Proxy) -> None:
    server = deployment.trained_server(1, 3)
    proxy.fail("reset")
    assert server.stop(timeout=180) == 1, server.report()
    hidden = deployment.spool.with_name("hidden")
    deployment.spool.rename(hidden)  # as if the next server ran on another machine
    proxy.heal()
    other = deployment.trained_server(60, 1)
    assert other.stop(timeout=120) == 0, other.report()
    hidden.rename(deployment.spool)
    step, log = deployment.resumed_at()
    assert step == 10
    assert "another server has saved 00000001-10-f" in log
    assert deployment.copies() == ["00000001-30-f1"]
    (copy,) = deployment.spool.iterdir()
    newer = copy / "00000001-30-f9"
    (copy / "00000001-30-f1").rename(newer)
    step, log = deployment.resumed_at()
    assert step == 10
    assert "checkpoint 00000001-30-f9 in " in log
    assert "is damaged and is not used" in log
    assert deployment.copies() == ["00000001-30-f9"]
