"""`ReplayProgressReader` polls the status of replay servers, and does not wait for replies."""

from __future__ import annotations

import socket
import time

import pytest

from relaax.cli.run import progress as replay_progress
from relaax.cli.run.progress import ReplayProgress, ReplayProgressReader, ReplayShards
from relaax.transport.channel import Target
from support.ports import free_ports
from support.processes import wait_until
from support.replay_servers import client_of, numbered, numbers, serving

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def poll_without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_progress, "ASK_SECONDS", 0.0)


def test_shards_are_summed_and_rates_are_recent() -> None:
    with serving(2) as shards, client_of(shards, numbered(100), actors=(0, 1)) as client:
        reader = ReplayProgressReader()
        addresses = [shard.address for shard in shards]

        def poll(updates: int = 0) -> ReplayProgress:
            found = reader.poll(addresses, updates)
            assert found is not None
            return found

        wait_until(lambda: poll().answering == 2 and poll().capacity == 100, "both have answered", PATIENCE)
        assert (poll().size, poll().inserts_per_second, poll().samples_per_insert) == (0, 0.0, None)
        for writer in client.writers:
            writer.insert(numbers(1, 2, 3))
        assert client.sample(12, 30.0) is not None
        wait_until(
            lambda: poll(5).size == 6 and (poll(5).samples_per_second or 0.0) > 0, "the items are counted", PATIENCE
        )
        found = poll(5)
        assert found.samples_per_insert == pytest.approx(2.0)
        assert 0 <= found.mean_age < 3
        assert found.updates_per_second is not None and found.inserts_per_second is not None
        assert found.updates_per_second == pytest.approx(found.inserts_per_second * 5 / 6)
        shards[1].stop()
        wait_until(lambda: poll(5).answering == 1, "one shard is unavailable", PATIENCE)
        assert poll(5).shards == 2
        assert poll(5).size == 3
        assert (poll(5).inserts_per_second or 0.0) == 0.0, (
            "items of an unavailable shard do not count as removed or inserted"
        )
        reader.close()


def test_run_without_replay_servers_has_no_replay_progress() -> None:
    reader = ReplayProgressReader()
    assert reader.poll([], 100) is None
    reader.close()


def test_poll_does_not_wait_for_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address, reader = f"127.0.0.1:{silent.getsockname()[1]}", ReplayProgressReader()
        started = time.monotonic()
        for _ in range(5):
            found = reader.poll([address], 0)
            assert found is not None
            assert (found.shards, found.answering, found.inserts_per_second) == (1, 0, None)
        assert time.monotonic() - started < 5.0
        reader.close()


def test_restarted_replay_server_is_polled_at_once() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    shards = ReplayShards([Target(address, service="replay server", keys="relaax-rlx-server.replay_server")])
    (view,) = shards.poll(PATIENCE)
    assert view.status is None and not view.refused
    assert view.error is not None and view.error.startswith("UNAVAILABLE")
    with serving(addresses=[address]):
        (view,) = shards.poll(PATIENCE)
        assert view.error is None and view.status is not None
        assert view.tables == {}
    shards.close()
