"""Training under random faults, with an account of every update. `soak.py` takes as many faults as one likes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.acceptor import Acceptor
from support.processes import Processes, wait_until
from support.soak_faults import Ground, deck, is_stopped, writing_nothing
from support.soak_journal import Journal, Life, Push, Stay, read_journal
from support.soak_layout import Layout
from support.soak_ledger import audit
from support.soak_run import run_soak
from support.soak_summary import Plan
from support.soak_watch import Saved, SavedShard
from support.soak_wire import Wire

FIRST, SECOND = 1000, 1001  # incarnations


def stay(incarnation: int, base: int, applied: int, undecided: bool = False, worker: str = "") -> Stay:
    """Of a worker over two shards, all of whose pushes were applied."""
    found = Stay(incarnation, worker or f"worker in {incarnation}", (base, base), 0)
    for index in range(1, applied + 1):
        found.pushes[index] = Push(20, True, "applied", (base + index, base + index))
    if undecided:
        found.pushes[applied + 1] = Push(20, True)
    return found


def saved(
    number: int, incarnation: int, held: tuple[int, int], pushes: tuple[int, int], steps: int = 200, **changes: Any
) -> Saved:
    """A checkpoint of two shards with the counters of one worker, and the numbers of its last pushes there."""
    shards = [
        SavedShard(count, np.array([count, 0]), count, {f"worker in {incarnation}": [push, 0, 0]}, steps)
        for count, push in zip(held, pushes, strict=True)
    ]
    shards[1] = dataclasses.replace(shards[1], **changes)
    return Saved(f"{number:08d}-0", (0, number), incarnation, 0, shards)


def life(*stays: Stay) -> Life:
    return Life(0, list(stays), [], False)


def test_an_account_that_is_right() -> None:
    """Ten pushes, a checkpoint between the parts of the eighth, a roll-back to it, three more and one undecided."""
    first, second = stay(FIRST, 0, 10), stay(SECOND, 0, 3, undecided=True)
    second.base = (8, 7)
    for index, push in second.pushes.items():
        push.counts = (8 + index, 7 + index) if push.outcome else ()
    account = audit(
        [life(first, second)], [saved(1, FIRST, (8, 7), (8, 7), 160), saved(2, SECOND, (11, 11), (3, 4), 220)], shards=2
    )
    assert account.violations == []
    assert account.acknowledged == [13, 13]
    assert account.rolled_back == [2, 3]
    assert account.undecided_applied == [0, 1]
    assert account.kept == [11, 11]


@pytest.mark.parametrize(
    ("checkpoints", "sentence"),
    [
        ([saved(1, FIRST, (10, 11), (10, 10))], r"shard 1: worker 0 has 11, and \[10\]"),
        ([saved(1, FIRST, (10, 9), (10, 10))], r"shard 1: worker 0 has 9, and \[10\]"),
        ([saved(1, FIRST, (10, 9), (10, 9))], "acknowledged updates are lost"),
        ([saved(1, FIRST, (10, 10), (10, 10), total=9)], "the total is 9"),
        ([saved(1, FIRST, (10, 10), (10, 10), version=11)], "the version is 11"),
        ([saved(1, 999, (1, 1), (1, 1)), saved(2, FIRST, (10, 10), (10, 10))], "found its counters at"),
        ([saved(1, FIRST, (10, 10), (10, 10), counts=np.array([10, 1]), total=11, version=11)], "worker 1 has 1"),
        ([saved(1, FIRST, (10, 8), (10, 8))], "hold pushes"),
        ([saved(1, FIRST, (10, 10), (10, 10), 220)], "at global step 220, and its pushes make 200"),
    ],
    ids=[
        "doubled",
        "lost",
        "lost at the end",
        "torn",
        "version",
        "another checkpoint",
        "from nobody",
        "no cut",
        "steps",
    ],
)
def test_an_account_that_is_wrong(checkpoints: list[Saved], sentence: str) -> None:
    account = audit([life(stay(FIRST, 0, 10))], checkpoints, shards=2)
    with pytest.raises(AssertionError, match=sentence):
        assert not account.violations, "\n".join(account.violations)


def test_a_journal_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    Journal(tmp_path, 4)
    journal = Journal(tmp_path, 4)
    journal.joined(FIRST, "w", 0, (0, 0))
    journal.pushing(1, 20, True)
    journal.pushed(1, "applied", (1, 1))
    journal.pushing(2, 20, False)
    with (tmp_path / "00001").open("a") as file:
        file.write("< 2 appl")
    found = read_journal(tmp_path / "00001")
    assert found.slot == journal.slot == 1
    assert found.stays == [
        Stay(FIRST, "w", (0, 0), 0, {1: Push(20, True, "applied", (1, 1)), 2: Push(20, False)}),
    ]


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_every_shard_has_counters_in_its_range(shards: int) -> None:
    layout = Layout(100, shards, 8)
    network = np.arange(100, dtype=np.float32)
    vector = layout.spread(network)
    np.testing.assert_array_equal(layout.gather(vector), network)
    layout.mark(vector, 3)
    ends = [index * layout.size // shards for index in range(shards + 1)]
    for start, end in itertools.pairwise(ends):
        assert vector[start : start + 8].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
        assert vector[end - 1] == 1
    np.testing.assert_array_equal(layout.gather(vector), network)


def test_the_same_seed_gives_the_same_faults() -> None:
    def names(seed: int) -> list[str]:
        service: Any = SimpleNamespace(shards=2)
        ground = Ground(service, random.Random(seed), 30.0, s3=object())
        return [kind.name for kind in itertools.islice(deck(ground), 100)]

    assert names(1) == names(1) != names(2)
    assert {names(1).count(name) for name in names(1)} <= {4, 5}, "every kind comes as often"


class Echo(Acceptor):
    """Says what it hears."""

    def _accepted(self, sock: socket.socket) -> None:
        self._start(self._echo, sock)

    def _echo(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := sock.recv(1000):
                sock.sendall(data)


def test_a_wire_truncates_swallows_and_heals() -> None:
    with Echo() as echo, Wire() as wire:
        wire.target = echo.address

        def connect() -> socket.socket:
            host, _, port = wire.address.rpartition(":")
            sock = socket.create_connection((host, int(port)), timeout=10)
            sock.sendall(b"hello")
            assert sock.recv(5) == b"hello"
            return sock

        with connect() as sock:
            wire.truncate(3)
            sock.sendall(b"hello")
            heard = b""
            with contextlib.suppress(ConnectionResetError):
                while data := sock.recv(5):
                    heard += data
            assert b"hello".startswith(heard) and len(heard) <= 3
        with connect() as sock:
            wire.swallow(False)
            sock.sendall(b"hello")
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.recv(5)
            wire.heal()
            connect().close()
        with connect() as sock:
            wire.stall()
            sock.sendall(b"hello")
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.recv(5)
            wire.heal()
            sock.settimeout(10)
            assert sock.recv(5) == b"hello"


def test_a_process_that_can_write_no_files(processes: Processes, tmp_path: Path) -> None:
    code = """
import sys, time
while True:
    try:
        with open(sys.argv[1], "wb", buffering=0) as file:
            file.write(b"x" * 1000)
            file.write(b"x" * 1000)
        print("written", flush=True)
    except OSError as error:
        print("refused", flush=True)
    time.sleep(0.01)
"""
    running = processes.start_python(code, str(tmp_path / "file"))
    running.wait_for_line("written")
    ground: Any = SimpleNamespace(service=SimpleNamespace(shard_pids=lambda: [running.pid]))
    end = writing_nothing(ground)
    running.wait_for_line("refused")
    end()
    said = len(running.lines)
    wait_until(lambda: "written" in running.lines[said + 1 :], "it can write again")
    assert not is_stopped(running.pid)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_training_under_random_faults(tmp_path: Path, short: bool) -> None:
    """Nothing is lost or doubled but by a declared roll-back, nothing hangs, and training reaches its target."""
    plan = Plan(faults=200, seed=3, target=150)
    if short:
        plan = Plan(faults=10, seed=3, clients=2, target=50, storm=4, stop_seconds=3, short=True)
    summary = run_soak(plan, tmp_path, say=lambda line: print(line, file=sys.stderr))
    assert summary["faults"] == plan.faults
    assert min(summary["kept"]) > 0
