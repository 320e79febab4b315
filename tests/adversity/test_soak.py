"""Training under random faults, with an account of every update. `soak.py` runs any number of faults."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import socket
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.acceptor import Acceptor
from support.processes import Processes, wait_until
from support.soak_evidence import PROMISES, Evidence, required
from support.soak_faults import Ground, catalogue, deck, is_stopped, writing_nothing
from support.soak_journal import Journal, Life, Push, Stay, read_journal
from support.soak_layout import Layout
from support.soak_ledger import audit
from support.soak_run import run_soak
from support.soak_summary import Plan, Record, summarize, table
from support.soak_watch import Saved, SavedShard
from support.soak_wire import Wire

pytestmark = pytest.mark.checks("relaax/server", "relaax/parameters", "relaax/checkpoint", "relaax/transport")

FIRST, SECOND = 1000, 1001  # incarnations


def stay(incarnation: int, base: int, applied: int, undecided: bool = False, worker: str = "") -> Stay:
    """Return a worker's time in an incarnation of two shards that applied all its pushes."""
    found = Stay(incarnation, worker or f"worker in {incarnation}", (base, base), 0)
    for index in range(1, applied + 1):
        found.pushes[index] = Push(20, True, "applied", (base + index, base + index), 10 * index, 10 * index + 5)
    if undecided:
        found.pushes[applied + 1] = Push(20, True, sent=10 * applied + 10)
    return found


def saved(
    number: int, incarnation: int, held: tuple[int, int], pushes: tuple[int, int], steps: int = 200, **changes: Any
) -> Saved:
    """Return a checkpoint of two shards with the counters of one worker and the numbers of its last pushes."""
    shards = [
        SavedShard(count, np.array([count, 0]), count, {f"worker in {incarnation}": [push, 0, 0]}, steps, steps)
        for count, push in zip(held, pushes, strict=True)
    ]
    for index, change in ((0, "samples"), (1, "counts"), (1, "total"), (1, "version")):
        if change in changes:
            shards[index] = dataclasses.replace(shards[index], **{change: changes[change]})
    return Saved(f"{number:08d}-0", (0, number), incarnation, 0, shards)


def life(*stays: Stay) -> Life:
    return Life(0, list(stays), [], False)


def test_correct_account_has_no_violations() -> None:
    """A checkpoint splits the eighth of ten pushes. A rollback to it, three pushes and an undecided one follow."""
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
    assert (account.returns, account.changes_seen, account.cuts_in_a_push) == (1, 1, 1)


def test_repeated_push_in_restored_checkpoint_counts_once() -> None:
    """The answer to the eighth push was lost. The checkpoint and the next incarnation contain the push."""
    first, second = stay(FIRST, 0, 8), stay(SECOND, 8, 2)
    first.pushes[8].repeats = 3
    account = audit(
        [life(first, second)], [saved(1, FIRST, (8, 8), (8, 8), 160), saved(2, SECOND, (10, 10), (2, 2), 200)], shards=2
    )
    assert account.violations == []
    assert (account.sent_again, account.refused, account.rolled_back) == (1, 0, [0, 0])


def test_refused_push_in_the_checkpoint_is_a_violation() -> None:
    first, second = stay(FIRST, 0, 7, undecided=True), stay(SECOND, 8, 2)
    first.pushes[8].refused = True
    checkpoints = [saved(1, FIRST, (8, 8), (8, 8), 160), saved(2, SECOND, (10, 10), (2, 2), 200)]
    account = audit([life(first, second)], checkpoints, shards=2)
    assert account.refused == 1
    assert [line for line in account.violations if "push 8 of worker 0 was refused" in line]
    checkpoints[0] = saved(1, FIRST, (8, 7), (8, 7), 160)
    second.base = (8, 7)
    account = audit([life(first, second)], checkpoints, shards=2)
    assert account.refused == 1
    assert not [line for line in account.violations if "was refused" in line], "one shard does not have the push"


def test_inconsistent_cut_of_two_workers_is_a_violation() -> None:
    """One worker's push is answered before another sends its push. The checkpoint contains only the later push."""
    first = stay(FIRST, 0, 10)
    others = [stay(FIRST, 0, 3, worker="the other") for _ in range(2)]
    checkpoint = saved(1, FIRST, (9, 9), (9, 9))
    for shard, held in zip(checkpoint.shards, (2, 2), strict=True):
        shard.ledger["the other"] = [held, 0, 0]

    def sentences(*, sent: int, answered: int) -> list[str]:
        """Return the violations if push 9 of one worker is sent and push 3 of the other is answered at these times.

        The checkpoint contains push 9 and lacks push 3.
        """
        first.pushes[9] = dataclasses.replace(first.pushes[9], sent=sent)
        others[0].pushes[3] = dataclasses.replace(others[0].pushes[3], answered=answered)
        lives = [life(first), Life(1, [others[0]], [], False)]
        return [
            line for line in audit(lives, [checkpoint], 2, ended=False).violations if "is not a consistent cut" in line
        ]

    assert sentences(sent=90, answered=91) == []
    (sentence,) = sentences(sent=5090, answered=90)
    assert "holds push 9 of worker 0" in sentence and "5.0 ms after the answer to push 3 of worker 1" in sentence


def test_account_during_training_skips_final_checks() -> None:
    """During training, the final checks are skipped and no violation is reported twice."""
    wrong = saved(1, FIRST, (10, 9), (10, 9), total=8)
    lives = [life(stay(FIRST, 0, 10, undecided=True))]
    assert "the total is 8" in "".join(audit(lives, [wrong], 2, ended=False).violations)
    assert audit(lives, [wrong], 2, ended=False, checked={wrong.checkpoint_id}).violations == []


class ScriptedProcess:
    """A process of the soak whose log is written by the test."""

    def __init__(self, folder: Path, name: str, values: dict[str, float]) -> None:
        self.values = values
        self.name = name
        self.running = SimpleNamespace(pid=1, lines=[], stderr_path=folder / name)
        self.running.stderr_path.touch()
        self.lives = [self.running]

    def log(self, line: str) -> None:
        with self.running.stderr_path.open("a", encoding="utf-8") as file:
            file.write(line)


def test_failed_save_counts_after_a_later_save(tmp_path: Path) -> None:
    shards: list[Any] = [ScriptedProcess(tmp_path, f"shard-{index}", {}) for index in range(2)]
    server: Any = ScriptedProcess(tmp_path, "rlx-server", {})
    evidence = Evidence("s3", shards, server)
    evidence.close()
    prefix = "2026-01-01 00:00:00 ERROR [1] relaax.server.checkpoints.checkpointing: "
    made = prefix + "saved checkpoint s3://b/x/00000007-1 at global step 7, in 0.1 s\n"
    shards[0].log(made)
    shards[0].log(prefix + "the checkpoint is late: shard 1 of 2 is unavailable: waiting for it\n")
    shards[0].log(made)
    assert (evidence.saves, evidence.saves_failed) == (0, 0), "the store did not fail"
    shards[0].log(prefix + "the checkpoint at global step 7 is late: cannot write s3://b/x: not now (SlowDown)\n")
    assert (evidence.saves, evidence.saves_failed) == (0, 1)
    shards[1].log(made)
    assert evidence.saves == 0, "the failed save was of another process"
    shards[0].log(made[:20])
    assert evidence.saves == 0, "the line is not complete"
    shards[0].log(made[20:])
    shards[0].log(made)
    assert (evidence.saves, evidence.saves_failed) == (1, 1)
    server.log("127.0.0.1:1: vectors are sent by gRPC for now, memory is no longer shared: it did not answer in time\n")
    assert evidence.left_memory == 1
    assert evidence.counts()["S3"] == 1


def test_required_promises_depend_on_the_plan() -> None:
    def names(ground: Ground, leg: str, faults: int) -> set[str]:
        return {promise.name for promise in required([kind.name for kind in catalogue(ground)], leg, faults)}

    service: Any = SimpleNamespace(shards=2)
    everything = {promise.name for promise in PROMISES}
    local = Ground(service, random.Random(1), 18.0, fill=writing_nothing)
    assert names(local, "local", 30) == everything - {"S3"}
    assert names(Ground(service, random.Random(1), 18.0, s3=object()), "s3", 30) == everything - {"disk"}
    assert names(local, "local", 5) == set(), "not every kind of fault occurs"
    assert names(dataclasses.replace(local, only="stop"), "local", 30) == set()
    assert "answered again" in names(dataclasses.replace(local, only="lost answer"), "local", 2)
    assert "answered again" not in names(dataclasses.replace(local, short=True), "local", 30), "it takes too long"
    assert "answered again" in names(dataclasses.replace(local, short=True, bridge="grpc"), "local", 30)


@pytest.mark.parametrize(
    ("checkpoints", "sentence"),
    [
        ([saved(1, FIRST, (10, 11), (10, 10))], r"shard 1: the counter of worker 0 is 11, not in \[10\]"),
        ([saved(1, FIRST, (10, 9), (10, 10))], r"shard 1: the counter of worker 0 is 9, not in \[10\]"),
        ([saved(1, FIRST, (10, 9), (10, 9))], "acknowledged updates are lost"),
        ([saved(1, FIRST, (10, 10), (10, 10), total=9)], "the total is 9"),
        ([saved(1, FIRST, (10, 10), (10, 10), version=11)], "the version is 11"),
        ([saved(1, 999, (1, 1), (1, 1)), saved(2, FIRST, (10, 10), (10, 10))], "started incarnation .* with counters"),
        (
            [saved(1, FIRST, (10, 10), (10, 10), counts=np.array([10, 1]), total=11, version=11)],
            "the counter of worker 1 is 1",
        ),
        ([saved(1, FIRST, (10, 8), (10, 8))], "hold pushes"),
        ([saved(1, FIRST, (10, 10), (10, 10), 220)], "at global step 220, but its pushes have 200 steps"),
        ([saved(1, FIRST, (10, 10), (10, 10), samples=220)], "at global step 200, but its statistic has 220 samples"),
    ],
    ids=[
        "doubled",
        "lost",
        "lost at the end",
        "torn",
        "version",
        "another checkpoint",
        "unknown worker",
        "inconsistent cut",
        "steps",
        "samples",
    ],
)
def test_wrong_account_has_violations(checkpoints: list[Saved], sentence: str) -> None:
    account = audit([life(stay(FIRST, 0, 10))], checkpoints, shards=2)
    with pytest.raises(AssertionError, match=sentence):
        assert not account.violations, "\n".join(account.violations)


def test_journal_is_read_up_to_its_last_complete_line(tmp_path: Path) -> None:
    Journal(tmp_path, 4)
    journal = Journal(tmp_path, 4)
    journal.joined(FIRST, "w", 0, (0, 0))
    journal.pushing(1, 20, True, "mg")
    journal.pushed(1, "applied", (1, 1), repeats=2)
    journal.pushing(2, 20, False)
    journal.refused(1)
    with (tmp_path / "00001").open("a") as file:
        file.write("< 2 123456 appl")
    found = read_journal(tmp_path / "00001")
    assert found.slot == journal.slot == 1
    (first,) = found.stays
    sent, answered, again = first.pushes[1].sent, first.pushes[1].answered, first.pushes[2].sent
    assert 0 < sent <= answered <= again
    pushes = {
        1: Push(20, True, "applied", (1, 1), sent, answered, 2, "mg"),
        2: Push(20, False, sent=again, repeats=1, ways="-", refused=True),
    }
    assert first == Stay(FIRST, "w", (0, 0), 0, pushes)


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


def test_same_seed_gives_same_faults() -> None:
    def names(seed: int) -> list[str]:
        service: Any = SimpleNamespace(shards=2)
        ground = Ground(service, random.Random(seed), 30.0, s3=object())
        return [kind.name for kind in itertools.islice(deck(ground), 100)]

    assert names(1) == names(1) != names(2)
    assert {names(1).count(name) for name in names(1)} <= {4, 5}, "every kind occurs equally often"


class Echo(Acceptor):
    """A server that sends back what it receives."""

    def _accepted(self, sock: socket.socket) -> None:
        self._start(self._echo, sock)

    def _echo(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := sock.recv(1000):
                sock.sendall(data)


def test_wire_truncates_drops_stalls_and_heals() -> None:
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
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while data := sock.recv(5):
                    received += data
            assert b"hello".startswith(received) and len(received) <= 3
        with connect() as sock:
            wire.swallow(False)
            sock.sendall(b"hello")
            wait_until(lambda: wire.swallowed == 5, "the answer is lost")
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


def test_file_size_limit_fails_writes_until_removed(processes: Processes, tmp_path: Path) -> None:
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
    count = len(running.lines)
    wait_until(lambda: "written" in running.lines[count + 1 :], "writes succeed again")
    assert not is_stopped(running.pid)


def test_table_shows_several_runs() -> None:
    account = audit([life(stay(FIRST, 0, 10))], [saved(1, FIRST, (10, 10), (10, 10))], shards=2)
    grpc, auto = (
        summarize(Plan(bridge=bridge, seed=7), Record(tested=Counter(refused=3), required={"refused"}), account, 60.0)
        for bridge in ("grpc", "auto")
    )
    lines = table(grpc, auto).splitlines()
    assert lines[0] == "|  | grpc, seed 7 | auto, seed 7 |"
    assert "| pushes refused because they were rolled back, and sent again | 3 | 3 |" in lines
    cuts = next(line for line in lines if line.startswith("| checkpoints between the parts of a push"))
    assert cuts.endswith(" | 0 (not required) | 0 (not required) |")
    assert "| 1 | auto, seed 7 | 10 | 0 | 0 | 10 |" in lines
    heads = [index for index, line in enumerate(lines) if line.startswith("| ---")]
    assert len(heads) == 4
    assert all(len(set(map(columns, block.splitlines()))) == 1 for block in table(grpc, auto).split("\n\n"))


def columns(line: str) -> int:
    return line.count("|")


_FEW: dict[str, Any] = {"seed": 3, "clients": 2, "target": 50, "stop_seconds": 3, "short": True}
_SHORT = {
    "grpc": Plan(faults=2, bridge="grpc", only="lost answer", s3=False, **_FEW),
    "auto": Plan(faults=6, storm=4, **_FEW),
}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("bridge", ["grpc", "auto"])
def test_training_under_random_faults(tmp_path: Path, short: bool, bridge: str) -> None:
    """Updates are lost only by a declared rollback and never applied twice, and training reaches its target in time."""
    plan = _SHORT[bridge] if short else Plan(faults=200, seed=3, target=150, bridge=bridge)
    summary = run_soak(plan, tmp_path, report=lambda line: print(line, file=sys.stderr))
    assert summary["faults"] >= plan.faults
    assert min(summary["kept"]) > 0
    assert all(summary["promises"][name] for name in summary["required"])
    assert bool(summary["required"]) is not (short and bridge == "auto"), "few faults do not test everything"
