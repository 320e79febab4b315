"""Tests of several connections of one program."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import threading
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from relaax import rlx
from relaax.client import Failure, RunSummary, command
from relaax.client.program.process import run_connections
from support.programs import program, running
from support.rlx_peer import PATIENCE, PeerConnection, RlxPeer, refuse, serve

pytestmark = pytest.mark.checks("relaax/client", "relaax/rlx")

GYM, ALE, NAME = "OpenAI_Gym", "ALE", "CartPole-v1"


def test_each_connection_has_its_own_seeds_and_measurements(tmp_path: Path) -> None:
    file = tmp_path / "measured.jsonl"
    with RlxPeer(serve) as peer:
        options = ("--connections", "3", "--steps", "20", "--seed", "5", "--measure", str(file))
        done = program(GYM, peer.address, NAME, "2", *options)
        inits = list(peer.received(rlx.Init))
        hellos = list(peer.received(rlx.Hello))
    assert done.returncode == 0, done.stderr
    assert "60 steps" in done.stdout
    assert [hello.environments for hello in hellos] == [2, 2, 2]
    env = gymnasium.make_vec(NAME, 2, "sync")
    expected = sorted(env.reset(seed=seed)[0].tolist() for seed in (5, 7, 9))
    assert np.allclose(sorted(init.observation[0].tolist() for init in inits), expected)
    for name in ("measured.jsonl", "measured-1.jsonl", "measured-2.jsonl"):
        lines = (tmp_path / name).read_text("utf-8").splitlines()
        assert json.loads(lines[-1])["steps"] == 20


@pytest.mark.parametrize(
    ("family", "arguments", "number", "code"),
    [
        (GYM, [NAME, "2"], signal.SIGINT, 130),
        pytest.param(GYM, [NAME, "2", "--vectorization", "async"], signal.SIGTERM, 0, marks=pytest.mark.slow),
        pytest.param(GYM, [NAME, "2", "--vectorization", "async"], signal.SIGINT, 130, marks=pytest.mark.slow),
        (ALE, ["boxing"], signal.SIGTERM, 0),
    ],
)
def test_signal_ends_all_connections_without_errors(
    family: str, arguments: list[str], number: signal.Signals, code: int
) -> None:
    acting = threading.Barrier(3)

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        for _ in range(20):
            conn.answer()
        acting.wait(PATIENCE)
        while True:
            conn.answer()

    with RlxPeer(script) as peer, running(family, peer.address, *arguments, "--connections", "2") as process:
        acting.wait(PATIENCE)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == code
    # A connection that ends before the program logs that it disconnects.
    expected = re.compile(r" relaax\.client: (connected to|disconnected from) ")
    assert all(expected.search(line) for line in stderr.splitlines()), stderr


def test_missing_library_of_one_connection_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    exit_codes: list[int] = []

    def main(arguments: argparse.Namespace) -> RunSummary:
        if arguments.seed == 0:
            raise ModuleNotFoundError("No module named 'gymnasium'", name="gymnasium")
        waiting.wait(PATIENCE)
        return RunSummary(0, 0, (), 0.0)

    monkeypatch.setattr(command, "exit_now", exit_codes.append)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # the handlers of this process stay
    line = ["localhost:1", NAME, "--connections", "2", "--seed", "0"]
    with pytest.raises(SystemExit):
        command.execute(command.parser("walls", "Walls.", "one"), main, line)
    assert exit_codes == [2], "the other connection still runs"
    waiting.set()


def test_failed_thread_start_names_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()
    start = threading.Thread.start

    def fail_for_second(thread: threading.Thread) -> None:
        if thread.name == "connection-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    def main(arguments: argparse.Namespace) -> RunSummary:
        waiting.wait(PATIENCE)
        return RunSummary(0, 0, (), 0.0)

    monkeypatch.setattr(threading.Thread, "start", fail_for_second)
    arguments = command.parser("walls", "Walls.", "one").parse_args(["localhost:1", NAME, "--connections", "2"])
    try:
        with pytest.raises(Failure, match=r"cannot start a thread for connection 2 of 2 .* use fewer --connections"):
            run_connections(main, arguments)
    finally:
        waiting.set()


def test_switch_interval_is_longer_during_the_run() -> None:
    before, intervals = sys.getswitchinterval(), []

    def main(arguments: argparse.Namespace) -> RunSummary:
        intervals.append(sys.getswitchinterval())
        return RunSummary(0, 0, (), 0.0)

    line = ["localhost:1", NAME, "--connections", "2"]
    run_connections(main, command.parser("walls", "Walls.", "one").parse_args(line))
    assert min(intervals) > before
    assert sys.getswitchinterval() == before


def test_summaries_of_connections_are_merged() -> None:
    def main(arguments: argparse.Namespace) -> RunSummary:
        returns = tuple(float(arguments.seed + i) for i in range(150))
        return RunSummary(150, 300, returns, 1.0 + arguments.seed, "target reached" if arguments.seed else None)

    line = ["localhost:1", NAME, "--connections", "3", "--seed", "0"]
    summary = run_connections(main, command.parser("walls", "Walls.", "one").parse_args(line))
    assert (summary.episodes, summary.steps, summary.seconds) == (450, 900, 3.0)
    assert len(summary.returns) == 450, "the mean is over the returns of all connections"
    assert summary.training_finished == "target reached"


def test_failure_of_one_connection_ends_the_program() -> None:
    with RlxPeer(serve, refuse(rlx.ErrorCode.UNAUTHENTICATED, "no such token")) as peer:
        done = program(GYM, peer.address, NAME, "--connections", "2")
    assert done.returncode == 2
    assert "no such token" in done.stderr
    assert "Traceback" not in done.stderr
