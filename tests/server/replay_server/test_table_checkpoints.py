"""Restarts of a replay server with checkpoints: restored tables, errors, and failing stores."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore, NoUsableCheckpoint, Store, StoreError
from relaax.checkpoint.s3 import S3Store
from relaax.configuration import ReplayServerSection
from relaax.replay import replay_pb2 as pb
from relaax.replay.interfaces import Insertion
from relaax.replay.replay_pb2_grpc import ReplayServiceStub
from relaax.replay.spec import Field, TableDeclaration, TableSpec
from relaax.replay.wire import declaration_to_message, to_messages
from relaax.server.command.termination import EndRequests
from relaax.server.ports.guard import Credentials
from relaax.server.replay_server.main import app
from relaax.server.replay_server.served_table import WriterInsert
from relaax.server.replay_server.service import ReplayService
from relaax.server.replay_server.table_checkpoints import TableCheckpoints, open_table_checkpoints
from relaax.server.service_errors import MemoryExhausted, NotAllowedNow
from support.cutting_proxy import CuttingProxy
from support.disks import small_disk
from support.processes import Processes, wait_until
from support.refusals import refusal
from support.replay_servers import (
    LARGE,
    Shard,
    client_of,
    numbered,
    numbers,
    pictured,
    start_replay_server,
    write_replay_configuration,
)
from support.s3_server import KEYS, S3Proxy, S3Server, keys_file
from support.scrape import scraped, status_url

pytestmark = pytest.mark.checks("relaax/server/replay_server", "relaax/replay", "relaax/checkpoint")

PREFIX = "relaax_replay_server_checkpoint_"
SHARD = "shard-0-of-1"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_replay_configuration(tmp_path)


@pytest.fixture
def ends() -> Iterator[EndRequests]:
    made = EndRequests()
    yield made
    made.close()


def kept(folder: Path) -> list[str]:
    return CheckpointManager(LocalStore(folder / SHARD)).published()


def restored_checkpoints(
    service: ReplayService, store: Store, ends: EndRequests, interval: float = 3600.0
) -> TableCheckpoints:
    """Return the checkpoints of a service in this process, without a lease, after a restore."""
    checkpoints = TableCheckpoints(service, CheckpointManager(store, 1, 0, finite=False), interval)
    checkpoints.restore(ends)
    return checkpoints


def fill(service: ReplayService, declaration: Any, count: int, session: str = "", sequence: int = 1) -> Any:
    """Return a table after one writer has inserted the next `count` of the items 0, 1, ..."""
    held = service.register(declaration, session)
    first = (sequence - 1) * count
    columns = {"number": np.arange(first, first + count)}
    service.insert(held, WriterInsert("ab" * 16, sequence, count, columns, force=True))
    return held


def everything(service: ReplayService, held: Any) -> set[int]:
    sample = service.sample(held, 20 * held.size, 1.0)
    assert sample is not None
    return set(sample.columns["number"].tolist())


@pytest.mark.slow
def test_restarted_server_continues_at_once(processes: Processes, config: Path) -> None:
    declaration = numbered(5000, min_size=300)
    place = ("--checkpoint-dir", str(config.parent / "kept"), "--status-bind", "127.0.0.1:0")
    server, address = start_replay_server(processes, config, *place)
    again, told = threading.Event(), threading.Event()
    with client_of([address], declaration) as client:
        sent = []

        def write() -> None:
            for number in range(10**6):
                client.writers[0].insert(numbers(2 * number, 2 * number + 1))
                sent.append(2)
                if number == 200:
                    told.set()
                if again.is_set() and len(sent) > 400:
                    return

        writer = threading.Thread(target=write)
        writer.start()
        assert told.wait(120)
        drawn = client.sample(8, 60.0)
        assert drawn is not None
        assert server.stop(timeout=120) == 0
        assert "at insert" in server.stderr
        server, _ = start_replay_server(processes, config, *place, "--bind", address)
        again.set()
        found = client.sample(8, 60.0)
        assert found is not None and found.size > 300, "it does not wait for min_size again"
        writer.join(120)
        assert not writer.is_alive()
        client.update_priorities(drawn, np.full(8, 1e9))
        url = status_url(server)
        wait_until(lambda: scraped(url)["relaax_replay_server_lost_updates_total"] == 8, "the updates are counted")
        inserts = 'relaax_replay_server_inserts_total{table="numbers"}'
        wait_until(lambda: scraped(url)[inserts] >= sum(sent), "pipelined inserts are stored")
        values = scraped(url)
        wanted = min(sum(sent), 5000)
        assert values['relaax_replay_server_items{table="numbers"}'] == wanted, "each item is stored once"
        assert values[inserts] == sum(sent)
        assert values[f"{PREFIX}bytes"] > 1000 and values[f"{PREFIX}failures_total"] == 0
        assert "replay items from" in server.stderr
    assert len(kept(config.parent / "kept")) == 1


def test_insert_repeated_after_the_restart_is_stored_once(processes: Processes, config: Path) -> None:
    declaration, place = numbered(100), ("--checkpoint-dir", str(config.parent / "kept"))
    ask = pb.ReplayServiceRegisterRequest(table=declaration_to_message(declaration))
    columns = to_messages({"number": np.array([7])})
    server, address = start_replay_server(processes, config, *place)
    with grpc.insecure_channel(address) as channel:
        stub = ReplayServiceStub(channel)
        first = stub.Register(ask, timeout=60)
        assert not first.earlier_incarnations
        insert = pb.InsertRequest(writer="ab" * 16, sequence=1, count=1, columns=columns)
        insert.incarnation = first.incarnation
        assert stub.Insert(insert, timeout=60).outcome == pb.OUTCOME_DONE
    assert server.stop(timeout=120) == 0
    _, address = start_replay_server(processes, config, *place)
    with grpc.insecure_channel(address) as channel:
        stub = ReplayServiceStub(channel)
        assert stub.Insert(insert, timeout=60).outcome == pb.OUTCOME_INCARNATION_ENDED
        second = stub.Register(ask, timeout=60)
        assert second.earlier_incarnations == [first.incarnation] and second.incarnation != first.incarnation
        assert second.state.size == 1
        insert.incarnation = second.incarnation
        assert stub.Insert(insert, timeout=60).outcome == pb.OUTCOME_DUPLICATE
        insert.sequence = 5  # four inserts came after the last checkpoint and were lost
        answer = stub.Insert(insert, timeout=60)
        assert (answer.outcome, answer.expected) == (pb.OUTCOME_OUT_OF_STEP, 2)


def test_insert_in_flight_during_a_restart_is_stored_once(tmp_path: Path, ends: EndRequests) -> None:
    store, service = LocalStore(tmp_path), ReplayService(LARGE)
    checkpoints = restored_checkpoints(service, store, ends)
    shard = Shard(service, Credentials(), None, "127.0.0.1:0")
    with CuttingProxy(shard.address) as proxy, client_of([proxy.address], numbered(), share_memory=False) as client:
        client.writers[0].insert(numbers(1))
        (held,) = service.tables()
        proxy.drop_answers()
        sending = threading.Thread(target=client.writers[0].insert, args=[numbers(2)])
        sending.start()
        wait_until(lambda: held.size == 2, "the insert has arrived")
        shard.stop()
        assert checkpoints.finish()
        service = ReplayService(LARGE)
        restored_checkpoints(service, store, ends)
        shard = Shard(service, Credentials(), None, shard.address)
        try:
            proxy.cut()
            sending.join(120)
            assert not sending.is_alive()
            client.writers[0].insert(numbers(3))
            (held,) = service.tables()
            assert everything(service, held) == {1, 2, 3}
            assert (held.size, held.statistics.inserts, held.statistics.duplicates) == (3, 3, 1)
        finally:
            shard.stop()


SLOW = """
import sys
from relaax.replay.table import table_copy
from relaax.server.replay_server.main import main
table_copy._LOCKED_BYTES = 16
table_copy._PAUSE = 0.3
sys.argv[0] = "relaax-replay-server"
main()
"""


@pytest.mark.slow
def test_server_killed_during_a_save_uses_the_previous_one(processes: Processes, config: Path) -> None:
    folder = config.parent / "kept"
    arguments = ("--config", str(config), "--checkpoint-dir", str(folder))
    often = ("--set", "replay-server.checkpoint-interval=0.1")

    def pictures(first: int, count: int) -> Insertion:
        frames = np.full((count + 1, 2, 2, 1), 3, np.uint8)
        names = first + np.arange(count)[:, None] + np.array([0, 1])
        return Insertion({"number": first + np.arange(count), "stack": names}, None, frames, first)

    server, address = start_replay_server(processes, config, "--checkpoint-dir", str(folder))
    with client_of([address], pictured()) as client:
        client.writers[0].insert(pictures(0, 5))
    assert server.stop(timeout=120) == 0
    (before,) = kept(folder)
    server = processes.start_python(SLOW, *arguments, *often)
    with client_of([server.wait_for_address()], pictured()) as client:
        client.writers[0].insert(pictures(100, 30))
        wait_until(lambda: len(list((folder / SHARD).glob("0*"))) == 2, "another one is begun", 120)
        server.kill()
    assert kept(folder) == [before], "the new checkpoint is incomplete"
    server, address = start_replay_server(processes, config, "--checkpoint-dir", str(folder))
    with client_of([address], pictured()) as client:
        found = client.sample(100, 60.0)
        assert found is not None and found.size == 5
        assert set(found.columns["number"].tolist()) == {0, 1, 2, 3, 4}
        assert (found.columns["stack"] == 3).all()
    assert len(list((folder / SHARD).glob("0*"))) == 1, "the incomplete checkpoint is deleted"


def test_damaged_checkpoint_is_named_and_the_way_out_works(config: Path, tmp_path: Path, ends: EndRequests) -> None:
    folder = tmp_path / "kept"
    service = ReplayService(LARGE)
    checkpoints = restored_checkpoints(service, LocalStore(folder / SHARD), ends)
    fill(service, numbered(100), 10)
    assert checkpoints.finish()
    (checkpoint,) = kept(folder)
    part = folder / SHARD / checkpoint / "table-0-00001.safetensors"
    part.write_bytes(part.read_bytes()[:-1])
    said = refusal(app, "--config", config, "--checkpoint-dir", folder)
    assert f"none of the 1 checkpoints in {folder / SHARD} can be used, and none is deleted" in said
    assert f"{checkpoint}/table-0-00001.safetensors has" in said
    (way_out,) = [line for line in said.splitlines() if "relaax checkpoints remove" in line]
    assert way_out.endswith(f"relaax checkpoints remove {folder / SHARD} {checkpoint}")
    with pytest.raises(NoUsableCheckpoint):
        restored_checkpoints(ReplayService(LARGE), LocalStore(folder / SHARD), ends)
    CheckpointManager(LocalStore(folder / SHARD)).remove(checkpoint)
    restored_checkpoints(ReplayService(LARGE), LocalStore(folder / SHARD), ends)


def test_another_number_of_shards_is_rejected(tmp_path: Path, ends: EndRequests) -> None:
    settings = ReplayServerSection(checkpoint_dir=str(tmp_path / "kept"))

    def start(shard: int, shards: int) -> tuple[ReplayService, TableCheckpoints, ExitStack]:
        service, closing = ReplayService(LARGE, shard, shards), ExitStack()
        checkpoints = open_table_checkpoints(settings, service, ends, closing)
        assert checkpoints is not None
        return service, checkpoints, closing

    for shard in range(2):
        service, checkpoints, closing = start(shard, 2)
        with closing:
            fill(service, numbered(100), 10 + shard)
            assert checkpoints.finish()
    with pytest.raises(StoreError, match=r"has checkpoints of 2 replay servers, and this is one of 3: set .*\.shards"):
        start(0, 3)
    for shard in range(2):
        service, _, closing = start(shard, 2)
        with closing:
            assert [held.size for held in service.tables()] == [10 + shard]


def test_restored_table_may_change_only_its_limits(tmp_path: Path, ends: EndRequests) -> None:
    store, service = LocalStore(tmp_path), ReplayService(LARGE)
    checkpoints = restored_checkpoints(service, store, ends)
    fill(service, numbered(100, samples_per_insert=2.0, min_size=10, error_buffer=20.0), 10)
    assert checkpoints.finish()
    service = ReplayService(LARGE)
    checkpoints = restored_checkpoints(service, store, ends)
    with pytest.raises(NotAllowedNow, match=rf"100 there and 200 here; its items are in checkpoints at {tmp_path}"):
        service.register(numbered(200))
    assert checkpoints.finish(), "there is no change to save"
    held = service.register(numbered(100, samples_per_insert=4.0, min_size=5, error_buffer=40.0))
    assert (held.size, held.has_min_size) == (10, True)
    assert service.sample(held, 8, 1.0) is not None
    with pytest.raises(NotAllowedNow, match="samples_per_insert is 4.0 there and None here"):
        service.register(numbered(100))
    with pytest.raises(MemoryExhausted, match="the limit is 0.00000100 GB: increase relaax-replay-server.memory"):
        checkpoints.finish()
        restored_checkpoints(ReplayService(1000), store, ends)


def test_tables_of_sessions_are_restored_and_evicted(tmp_path: Path, ends: EndRequests) -> None:
    store, one = LocalStore(tmp_path), numbered(1000).spec.bytes()
    service = ReplayService(3 * one)
    checkpoints = restored_checkpoints(service, store, ends)
    for number, session in enumerate(("a", "b", "c"), 1):
        fill(service, numbered(1000), number, session)
    assert checkpoints.finish()
    clock = [0.0]
    service = ReplayService(3 * one, session_timeout=600.0, clock=lambda: clock[0])
    restored_checkpoints(service, store, ends)
    assert service.register(numbered(1000), "b").size == 2
    assert service.register(numbered(1000), "d").size == 0, "an unclaimed table is evicted"
    assert {held.session for held in service.tables()} == {"b", "c", "d"}
    clock[0] = 700.0
    service.sweep()
    assert service.tables() == []


def test_nan_and_infinity_are_restored(tmp_path: Path, ends: EndRequests) -> None:
    store, service = LocalStore(tmp_path), ReplayService(LARGE)
    checkpoints = restored_checkpoints(service, store, ends)
    declaration = TableDeclaration(TableSpec("odd", {"number": Field("float16")}, 10))
    held = service.register(declaration)
    odd = np.array([np.nan, np.inf, 1], np.float16)
    service.insert(held, WriterInsert("ab" * 16, 1, 3, {"number": odd}))
    assert checkpoints.finish()
    service = ReplayService(LARGE)
    restored_checkpoints(service, store, ends)
    sample = service.sample(service.register(declaration), 100, 1.0)
    assert sample is not None and {str(number) for number in sample.columns["number"]} == {"nan", "inf", "1.0"}


def test_full_disk_delays_a_save_and_the_service_continues(tmp_path: Path, ends: EndRequests) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        service = ReplayService(LARGE)
        checkpoints = restored_checkpoints(service, LocalStore(disk.path / "kept"), ends, 0.05)
        held = fill(service, numbered(10_000), 100)
        disk.fill()
        checkpoints.start()
        wait_until(lambda: checkpoints.failures > 2, "saves fail")
        fill(service, numbered(10_000), 100, sequence=2)
        assert everything(service, held) == set(range(200))
        assert checkpoints.saved is None
        disk.free()
        wait_until(lambda: checkpoints.saved is not None, "the checkpoint is saved")
        assert checkpoints.finish()
        service = ReplayService(LARGE)
        restored_checkpoints(service, LocalStore(disk.path / "kept"), ends)
        assert [held.size for held in service.tables()] == [200]


@pytest.mark.slow
@pytest.mark.checks("relaax/server/replay_server", "relaax/checkpoint")
def test_memory_in_s3_is_restored(tmp_path: Path, s3: S3Server, ends: EndRequests) -> None:
    settings = ReplayServerSection(
        checkpoint_aws_s3=[s3.bucket(), "memory/run"],
        aws_keys=str(keys_file(tmp_path)),
        aws_endpoint=f"http://{s3.address}",
    )
    with ExitStack() as closing:
        service = ReplayService(LARGE)
        checkpoints = open_table_checkpoints(settings, service, ends, closing)
        fill(service, numbered(100), 3)
        assert checkpoints is not None and checkpoints.finish()
    with ExitStack() as closing:
        service = ReplayService(LARGE)
        open_table_checkpoints(settings, service, ends, closing)
        (held,) = service.tables()
        assert everything(service, held) == {0, 1, 2}


@pytest.mark.slow
def test_server_restores_a_memory_in_s3(processes: Processes, config: Path, tmp_path: Path, s3: S3Server) -> None:
    place = ("--checkpoint-aws-s3", s3.bucket(), "memory/run", "--aws-keys", str(keys_file(tmp_path)))
    place = (*place, "--aws-endpoint", f"http://{s3.address}")
    server, address = start_replay_server(processes, config, *place)
    with client_of([address], numbered()) as client:
        client.writers[0].insert(numbers(1, 2, 3))
    assert server.stop(timeout=120) == 0
    server, address = start_replay_server(processes, config, *place)
    with client_of([address], numbered()) as client:
        found = client.sample(100, 60.0)
        assert found is not None and set(found.columns["number"].tolist()) == {1, 2, 3}
    assert server.stop(signal.SIGINT, timeout=120) == 130


def test_unreachable_s3_only_delays_a_save(s3: S3Server, ends: EndRequests) -> None:
    with S3Proxy(s3.address) as proxy:
        bucket = s3.bucket()
        store = S3Store(bucket, "memory", lambda: KEYS, proxy.url, quick=True)
        service = ReplayService(LARGE)
        checkpoints = restored_checkpoints(service, store, ends, 0.05)
        held = fill(service, numbered(1000), 100)
        proxy.fail("reset")
        checkpoints.start()
        wait_until(lambda: checkpoints.failures > 0, "saves fail", 60)
        assert everything(service, held) == set(range(100))
        proxy.heal()
        wait_until(lambda: checkpoints.saved is not None, "the checkpoint is saved", 60)
        assert checkpoints.finish()
