"""Clients of replay servers that are killed, hang or restart."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from relaax.replay.client import writer as remote_writer
from relaax.replay.interfaces import ReplayUnavailable
from support.processes import Processes, Running, wait_until
from support.replay_servers import client_of, numbered, numbers, start_replay_server, write_replay_configuration

pytestmark = pytest.mark.checks("relaax/replay", "relaax/server/replay_server")


def restarted(processes: Processes, config: Path, address: str, *arguments: str) -> Running:
    """Start a server at the address of a killed one."""
    server, again = start_replay_server(processes, config, "--bind", address, *arguments)
    assert again == address
    return server


@pytest.mark.slow
def test_clients_continue_while_a_shard_restarts(processes: Processes, tmp_path: Path) -> None:
    config = write_replay_configuration(tmp_path)
    started = [start_replay_server(processes, config, "--shard", f"{shard}/2") for shard in range(2)]
    addresses = [address for _, address in started]
    declaration = numbered(10**5)
    with (
        client_of(addresses, declaration, actors=[0, 1]) as client,
        client_of(addresses, declaration, actors=()) as other,
    ):
        stop = threading.Event()
        inserted: list[int] = []
        longest = [0.0, 0.0]

        def write() -> None:
            number = 0
            while not stop.is_set():
                began = time.monotonic()
                for writer in client.writers:
                    writer.insert(numbers(number))
                    inserted.append(number)
                    number += 1
                longest[0] = max(longest[0], time.monotonic() - began)

        batches = [0]
        places: set[int] = set()

        def sample() -> None:
            while not stop.is_set():
                began = time.monotonic()
                found = other.sample(32, 30.0)
                longest[1] = max(longest[1], time.monotonic() - began)
                if found is not None:
                    batches[0] += 1
                    places.update(found.places.tolist())
                    other.update_priorities(found, np.ones(32))

        threads = [threading.Thread(target=side, daemon=True) for side in (write, sample)]
        for thread in threads:
            thread.start()
        wait_until(lambda: places == {0, 1}, "both shards are drawn from", 60)
        started[1][0].kill()
        at = batches[0], len(inserted)
        wait_until(lambda: batches[0] > at[0] + 50 and len(inserted) > at[1] + 50, "both sides continue", 60)
        second = client.writers[1]
        wait_until(lambda: second._link is client._group.links[0], "the writer has switched to shard 0", 60)  # type: ignore[attr-defined]
        lost_by_death = client.lost
        again = restarted(processes, config, addresses[1], "--shard", "1/2")
        places.clear()
        wait_until(lambda: places == {0, 1}, "samplers use the shard again", 60)
        wait_until(lambda: second._link is client._group.links[1], "its writer uses it again", 60)  # type: ignore[attr-defined]
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert lost_by_death <= 1, "at most one insert was in flight"
        assert client.lost == lost_by_death
        assert max(longest) < 30
        owners: dict[int, tuple[int, int]] = {}
        size = -1
        for _ in range(300):  # until all items were drawn
            found = other.sample(2000, 30.0)
            assert found is not None
            size = found.size
            columns = (found.columns["number"], found.places, found.keys)
            for value, *place in zip(*(column.tolist() for column in columns), strict=True):
                assert owners.setdefault(value, tuple(place)) == tuple(place), "no item is stored twice"
            if len(owners) == size:
                break
        assert len(owners) == size
        assert owners.keys() <= set(inserted)
    assert again.stop() == 0


def test_clients_continue_with_a_restarted_empty_server(processes: Processes, tmp_path: Path) -> None:
    config = write_replay_configuration(tmp_path)
    server, address = start_replay_server(processes, config)
    with client_of([address], numbered()) as client:
        (writer,) = client.writers
        writer.insert(numbers(1))
        before = client.sample(1, 30.0)
        assert before is not None
        server.kill()
        done = threading.Event()

        def insert() -> None:
            writer.insert(numbers(2))
            done.set()

        thread = threading.Thread(target=insert, daemon=True)
        thread.start()
        assert not done.wait(0.3)
        restarted(processes, config, address)
        thread.join(60)
        assert done.is_set()
        found = client.sample(8, 30.0)
        assert found is not None and set(found.columns["number"].tolist()) == {2}
        assert found.incarnations != before.incarnations
        client.update_priorities(before, np.full(1, 7.0))
        writer.insert(numbers(3))
        found = client.sample(64, 30.0)
        assert found is not None and set(found.probabilities.tolist()) == {0.5}, "old priorities have no effect"
        assert client.lost == 0


def test_clients_raise_if_the_only_server_stays_unreachable(processes: Processes, tmp_path: Path) -> None:
    server, address = start_replay_server(processes, write_replay_configuration(tmp_path))
    with client_of([address], numbered(), patience=0.5) as client:
        client.writers[0].insert(numbers(1))
        server.kill()
        with pytest.raises(ReplayUnavailable, match="was unreachable for 0.5 s: start it"):
            client.writers[0].insert(numbers(2))
        with pytest.raises(ReplayUnavailable, match="was unreachable for 0.5 s: start it"):
            wait_until(lambda: client.sample(1, 0.1), "the server stays unreachable", 60)


def test_hanging_shard_is_excluded(processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_writer, "GRACE_SECONDS", 0.2)
    config = write_replay_configuration(tmp_path)
    started = [start_replay_server(processes, config, "--shard", f"{shard}/2") for shard in range(2)]
    addresses = [address for _, address in started]
    with client_of(addresses, numbered(), actors=[0, 1], timeout=0.5) as client:
        for number, writer in enumerate(client.writers):
            writer.insert(numbers(number))
        wait_until(lambda: (found := client.sample(8, 10.0)) and set(found.places.tolist()) == {0, 1}, "both", 60)
        started[1][0].send_signal(signal.SIGSTOP)
        threads = list(Path(f"/proc/{started[1][0].pid}/task").iterdir())
        wait_until(lambda: all(" T " in (thread / "stat").read_text() for thread in threads), "each thread has stopped")
        try:
            found = client.sample(8, 30.0)
            assert found is not None
            client.writers[1].insert(numbers(2))
            assert client.lost <= 1
            found = client.sample(8, 30.0)
            assert found is not None and set(found.places.tolist()) == {0}
        finally:
            started[1][0].send_signal(signal.SIGCONT)
        wait_until(lambda: (found := client.sample(8, 10.0)) and 1 in found.places, "the shard is used again", 60)
