"""S3 is away when the server ends: it tries on, and keeps a copy that the next start finds."""

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

# The real server, with as many seconds for its last checkpoint as are given.
SERVER = """
import sys
from relaax.server.parameter_server import main
from relaax.server.parameter_server.command import server
server.LAST_SECONDS = float(sys.argv.pop(1))
sys.argv[0] = "relaax-parameter-server"
main.main()
"""


class Place:
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
        """A server that has learned and saved nothing yet."""
        server = self.processes.start_python(SERVER, str(seconds), "--config", str(self.config), *self.arguments, *more)
        with parameter_client(server.wait_for_address()) as client:
            client.register(worker(self.config))
            trained(client, pushes)
        return server

    def resumed_at(self) -> tuple[int, str]:
        """Where the output of a server begins that is started now, and what it said."""
        server, address = start(self.processes, self.config, *self.arguments)
        with parameter_client(address) as client:
            step = client.register(worker(self.config)).global_step
        assert server.stop(timeout=120) == 0, server.report()
        return step, server.stderr

    def copies(self) -> list[str]:
        return sorted(path.parent.name for path in self.spool.rglob("manifest.json"))


@pytest.fixture
def place(processes: Processes, s3: S3Server, proxy: S3Proxy, tmp_path: Path) -> Place:
    return Place(processes, s3, proxy, tmp_path)


@pytest.mark.slow
def test_s3_that_comes_back_before_the_deadline_gets_the_last_checkpoint(place: Place, proxy: S3Proxy) -> None:
    server = place.trained_server(600, 2)
    proxy.fail("reset")
    server.send_signal(signal.SIGTERM)
    wait_until(place.copies, "a copy is kept meanwhile", timeout=120)
    before = len(proxy.requests)
    wait_until(lambda: len(proxy.requests) > before + 12, "it tries on, longer than three attempts", timeout=120)
    proxy.heal()
    assert server.wait(120) == 0, server.report()
    assert [name.split("-")[1] for name in place.manager.published()] == ["20"]
    assert not list(place.spool.iterdir()), "the copy is removed"


@pytest.mark.slow
def test_a_copy_of_the_last_checkpoint_is_found_by_the_next_start(place: Place, proxy: S3Proxy) -> None:
    server = place.trained_server(1, 3)
    proxy.fail("reset")
    assert server.stop(timeout=180) == 1, server.report()
    assert "the last checkpoint, at global step 30, is kept in " in server.stderr
    assert "this machine keeps it for the next start" in server.stderr
    assert "Traceback" not in server.stderr
    assert place.manager.published() == []
    assert place.copies() == ["00000001-30-f1"]
    proxy.heal()
    step, said = place.resumed_at()
    assert step == 30
    assert "checkpoint 00000001-30-f1, which was kept in " in said
    assert place.manager.published() == ["00000001-30-f1"]
    assert not list(place.spool.iterdir())
    assert place.resumed_at()[0] == 30


@pytest.mark.slow
def test_several_shards_try_on_until_s3_comes_back(place: Place, proxy: S3Proxy) -> None:
    shards = ShardProcesses(place.processes, place.config, 2, place.arguments)
    with parameter_client(shards.addresses) as client:
        client.register(worker(place.config))
        trained(client, 2)
    proxy.fail("reset")
    before = len(proxy.requests)
    shards.running[0].send_signal(signal.SIGTERM)
    wait_until(lambda: len(proxy.requests) > before + 40, "they try on, longer than three attempts", timeout=120)
    proxy.heal()
    assert [running.wait(120) for running in shards.running] == [0, 0], shards.running[0].report()
    assert [name.split("-")[1] for name in place.manager.published()] == ["20"]


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_tries_on_has_left_a_copy(place: Place, proxy: S3Proxy) -> None:
    """A container gets ten seconds, unless somebody gave it more; and S3 has been away for longer."""
    server = place.trained_server(600, 1, "--set", "parameter-server.checkpoint_interval=0.2")
    wait_until(place.manager.published, "the first checkpoint is in the bucket", timeout=120)
    fault = proxy.fail("reset")
    with parameter_client(server.wait_for_address()) as client:
        client.register(worker(place.config))
        trained(client, 3)
    wait_until(lambda: "is late: cannot" in server.stderr, "S3 is known to be away", timeout=120)
    fault.kind = "stall"
    server.send_signal(signal.SIGTERM)
    wait_until(place.copies, "the copy does not wait for an attempt to fail", timeout=120)
    server.kill()
    proxy.heal()
    assert place.resumed_at()[0] == 40


@pytest.mark.slow
def test_a_copy_that_is_older_than_what_s3_has_or_damaged_is_kept_and_not_used(place: Place, proxy: S3Proxy) -> None:
    server = place.trained_server(1, 3)
    proxy.fail("reset")
    assert server.stop(timeout=180) == 1, server.report()
    hidden = place.spool.with_name("hidden")
    place.spool.rename(hidden)  # as if the next server ran on another machine
    proxy.heal()
    other = place.trained_server(60, 1)
    assert other.stop(timeout=120) == 0, other.report()
    hidden.rename(place.spool)
    step, said = place.resumed_at()
    assert step == 10
    assert "another server has saved 00000001-10-f" in said
    assert place.copies() == ["00000001-30-f1"]
    (copy,) = place.spool.iterdir()
    newer = copy / "00000001-30-f9"
    (copy / "00000001-30-f1").rename(newer)
    step, said = place.resumed_at()
    assert step == 10
    assert "checkpoint 00000001-30-f9 in " in said
    assert "is damaged and is not used" in said
    assert place.copies() == ["00000001-30-f9"]
