"""Bounds and release of the memory that local callers share with a replay server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.memory import ShardMemory
from relaax.replay.wire import INSERT_NUMBERS
from relaax.server.ports import shared_budget
from relaax.transport import segments
from relaax.transport.frames import CONNECTION_END, SAMPLE, Frame
from relaax.transport.local_socket import Introduction, NoSharedMemory, connect
from support.processes import Processes, Running, wait_until
from support.replay_servers import Shard, client_of, numbered, numbers, serving

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="the system has no memory that can be handed over")

TESTS = Path(__file__).parents[1]
MEMORY = 500_000_000
MOST = MEMORY // 4
BIG = 2**26


def offer(shard: Shard) -> pb.ReplayMemoryOffer:
    name = os.urandom(16).hex()
    made = shard.server._local._offers.offer(name)
    assert made is not None
    return pb.ReplayMemoryOffer(
        socket=made.socket, name=name, caller_proof=made.worker_proof, server_proof=made.shard_proof
    )


def by_memory(shard: Shard) -> int:
    return shard.server._local._offers.connected()


@contextmanager
def greedy(shard: Shard, what: str, wanted: int, folder: Path) -> Iterator[list[Running]]:
    """Four callers, as processes, that have touched all the memory that they can get. They end with the block."""
    with Processes(folder) as processes:
        callers = []
        for _ in range(4):
            made = offer(shard)
            proofs = [made.socket, made.name.encode(), made.caller_proof, made.server_proof]
            line = [sys.executable, "-m", "support.greedy_caller", what, str(wanted), *(one.hex() for one in proofs)]
            callers.append(processes.start(*line, env={"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}))
        yield callers


def test_samples_of_local_callers_stay_within_the_budget(tmp_path: Path) -> None:
    with serving(memory=MEMORY) as (shard,), client_of([shard], numbered()) as honest:
        honest.writers[0].insert(numbers(*range(100)))
        with greedy(shard, "samples", 3 * BIG, tmp_path) as callers:
            touched = [int(caller.wait_for_line("")) for caller in callers]
            assert 0 < sum(touched) <= MOST
            found = honest.sample(32, 30.0)
            assert found is not None and len(found.keys) == 32
        wait_until(lambda: shard.server.shared.taken() < BIG // 8, "the memory of ended callers is freed")
        with client_of([shard], numbered()) as newcomer:
            newcomer.sample(32, 30.0)
            assert by_memory(shard) >= 1


def test_local_callers_beyond_the_budget_continue_by_grpc(tmp_path: Path) -> None:
    with serving(memory=MEMORY) as (shard,), client_of([shard], numbered()) as honest:
        honest.writers[0].insert(numbers(*range(100)))
        with greedy(shard, "inserts", BIG, tmp_path) as callers:
            assert sum(int(caller.wait_for_line("")) for caller in callers) > MOST
            wait_until(lambda: by_memory(shard) <= 2, "the largest connections are closed")
            with pytest.raises(NoSharedMemory, match="bytes of shared memory are taken"):
                ShardMemory(offer(shard), numbered().spec)
            assert honest.sample(32, 30.0) is not None
            assert by_memory(shard) >= 1, "the honest writer uses shared memory"
        wait_until(lambda: shard.server.shared.taken() < BIG // 8, "the memory of ended callers is freed")
        ShardMemory(offer(shard), numbered().spec).close()


def test_64_honest_writers_share_memory() -> None:
    with serving(memory=MEMORY) as (shard,), ExitStack() as opened:
        for _ in range(64):
            memory = opened.enter_context(closing(ShardMemory(offer(shard), numbered().spec)))
            memory._inserts[: 2**20] = bytes(2**20)
        wait_until(lambda: by_memory(shard) == 64, "the server has accepted all")
        shard.server.shared.sweep()
        assert by_memory(shard) == 64
        assert 64 * 2**20 <= shard.server.shared.taken() <= MOST


def held_of(shard: Shard) -> int:
    """The number of returned loans that a caller still has mapped."""
    shard.server.shared.taken()  # brings _held up to date
    return len(shard.server.shared._held)


def test_memory_kept_after_connections_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_budget, "MAX_HELD", 3)
    with serving(memory=MEMORY) as (shard,):
        made = offer(shard)
        who = Introduction(made.name, made.caller_proof, made.server_proof)
        kept = []
        with pytest.raises(NoSharedMemory, match="3 parts of shared memory are still held"):
            for _ in range(5):
                frames, memory = connect(made.socket, who, INSERT_NUMBERS, 10.0)
                kept.append(memory)
                frames.close()
                wait_until(lambda: by_memory(shard) == 0, "the server has seen the end of the connection")
                wait_until(lambda: held_of(shard) >= len(kept), "the server counts the memory of ended connections")
        del memory
        kept.clear()
        frames, _ = connect(made.socket, who, INSERT_NUMBERS, 10.0)
        frames.close()


def test_memory_counts_until_the_caller_releases_it() -> None:
    with serving(memory=MEMORY) as (shard,):
        made = offer(shard)
        who = Introduction(made.name, made.caller_proof, made.server_proof)
        kept = []
        for _ in range(2):  # a second connection does not get more
            frames, _ = connect(made.socket, who, INSERT_NUMBERS, 10.0)
            with closing(frames):
                frames.send(Frame(SAMPLE, b"", vector=BIG))
                answer, descriptor = frames.receive()
                if descriptor is None:
                    assert answer.kind == CONNECTION_END
                else:
                    kept.append(segments.map_(descriptor, BIG // 4, writable=False, at_once=False))
                    os.close(descriptor)
            wait_until(lambda: by_memory(shard) == 0, "the server has seen the end of the connection")
        assert len(kept) == 1
        assert shard.server.shared.taken() == BIG
        np.testing.assert_array_equal(kept[0][:4], 0)
        kept.clear()
        wait_until(lambda: shard.server.shared.taken() == 0, "the caller has released the memory")
