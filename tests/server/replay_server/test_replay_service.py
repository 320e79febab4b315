"""The replay service without a transport."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import numpy as np
import pytest

from relaax.server.replay_server import served_table, service, table_statistics
from relaax.server.replay_server.served_table import InsertAnswer, ServedTable, WriterInsert
from relaax.server.replay_server.service import ReplayService
from relaax.server.service_errors import InvalidRequest, MemoryExhausted, NotAllowedNow
from support.processes import wait_until
from support.replay_servers import LARGE, numbered, pictured

WRITER = uuid.UUID(int=1).hex


def inserted(
    shard: ReplayService, held: ServedTable, sequence: int, count: int = 1, writer: str = WRITER, **more: Any
) -> InsertAnswer:
    columns = {"number": np.full(count, sequence, np.int64)}
    return shard.insert(held, WriterInsert(writer, sequence, count, columns, **more))


@pytest.mark.parametrize("module", [served_table, service, table_statistics])
def test_service_does_not_import_grpc(module: Any) -> None:
    assert "grpc" not in vars(module) and "pb" not in vars(module)


def test_table_is_created_once_and_found_by_its_incarnation() -> None:
    shard = ReplayService(LARGE)
    held = shard.register(numbered())
    assert shard.register(numbered()) is held
    assert shard.find(held.incarnation) is held
    assert shard.find("0" * 32) is None
    with pytest.raises(NotAllowedNow, match="another declaration: capacity is 1000 there and 10 here"):
        shard.register(numbered(10))


def test_repeated_insert_is_ignored_and_a_gap_is_reported() -> None:
    shard = ReplayService(LARGE)
    held = shard.register(numbered(samples_per_insert=1.0, min_size=1, error_buffer=8.0))
    assert inserted(shard, held, 1) == InsertAnswer()
    assert inserted(shard, held, 1) == InsertAnswer(duplicate=True)
    assert inserted(shard, held, 3) == InsertAnswer(expected=2)
    assert inserted(shard, held, 2, count=2) == InsertAnswer()
    assert (held.size, held.limiter.inserts, held.statistics.duplicates) == (3, 3, 1)


def test_insert_is_forced_only_without_active_learners() -> None:
    now = 0.0
    shard = ReplayService(LARGE, clock=lambda: now)
    held = shard.register(numbered(samples_per_insert=1.0, min_size=1, error_buffer=2.0))
    assert [inserted(shard, held, number).not_yet for number in (1, 2, 3)] == [False] * 3
    assert inserted(shard, held, 4, wait=0.05) == InsertAnswer(not_yet=True)
    assert inserted(shard, held, 3, wait=1.0) == InsertAnswer(duplicate=True), "a duplicate does not wait"
    assert held.limiter.inserts == 3
    assert inserted(shard, held, 4, force=True) == InsertAnswer(not_yet=True), "learners may be active"
    now = served_table.UNDRAWN_SECONDS
    assert inserted(shard, held, 4) == InsertAnswer(not_yet=True), "it has not waited"
    assert inserted(shard, held, 4, force=True) == InsertAnswer(overrun=True)
    assert (held.size, held.statistics.overruns) == (4, 1)
    assert shard.sample(held, 2, 0.0) is not None
    assert inserted(shard, held, 5, force=True) == InsertAnswer(), "it was allowed without force"
    assert inserted(shard, held, 6, count=2, force=True) == InsertAnswer(not_yet=True), "learners are active again"
    assert inserted(shard, held, 6, count=2, leaving=True) == InsertAnswer(overrun=True)
    with pytest.raises(InvalidRequest, match="need an error_buffer of at least 3"):
        inserted(shard, held, 7, count=3)


def test_sample_waits_for_the_writers() -> None:
    shard = ReplayService(LARGE)
    held = shard.register(numbered(min_size=2))
    assert shard.sample(held, 4, 0.05) is None
    found: list[Any] = []
    sampler = threading.Thread(target=lambda: found.append(shard.sample(held, 4, 1.0)))
    inserted(shard, held, 1)
    assert not held.has_min_size
    sampler.start()
    inserted(shard, held, 2)
    sampler.join(60)
    assert held.has_min_size
    assert found[0] is not None and found[0].size == 2
    assert held.statistics.samples == 4


def test_table_that_does_not_fit_is_rejected_with_both_numbers() -> None:
    needed = numbered(10**6).spec.bytes()
    shard = ReplayService(int(1.5 * needed))
    shard.register(numbered(10**6), "one")
    with pytest.raises(MemoryExhausted) as refused:
        shard.register(numbered(10**6), "two")
    table, all_tables = f"{needed / 1e9:.4f} GB", f"{1.5 * needed / 1e9:.4f} GB"
    says = f"needs {table} on this shard, other tables need {table}, and the limit is {all_tables}: increase "
    assert says in str(refused.value)
    half = ReplayService(int(0.6 * needed), 0, 2)
    assert half.register(numbered(10**6)).spec.capacity == 5 * 10**5


def test_silent_session_loses_its_table_but_not_the_shared_one() -> None:
    now = [0.0]
    shard = ReplayService(LARGE, session_timeout=10.0, clock=lambda: now[0])
    whole, own, other = shard.register(numbered()), shard.register(numbered(), "a"), shard.register(numbered(), "b")
    assert len({whole.incarnation, own.incarnation, other.incarnation}) == 3
    inserted(shard, own, 1, count=5)
    now[0] = 9.0
    shard.sweep()
    assert shard.find(other.incarnation) is other
    now[0] = 12.0
    shard.sweep()
    assert shard.find(own.incarnation) is None
    assert shard.find(other.incarnation) is other and shard.find(whole.incarnation) is whole
    tally = shard.statistics()["numbers"]
    assert (tally.tables, tally.inserts, tally.size) == (2, 5, 0), "counters of dropped tables remain"
    assert shard.register(numbered(), "a").incarnation != own.incarnation
    assert shard.update_priorities(own.incarnation, np.ones(3, np.uint64), np.ones(3)) == 0
    assert shard.lost_updates == 3
    with pytest.raises(InvalidRequest, match="name of a session must have"):
        shard.register(numbered(), "x" * 200)


def test_silent_writers_are_removed_for_the_frames_of_others() -> None:
    now = [0.0]
    shard = ReplayService(LARGE, clock=lambda: now[0])
    held = shard.register(pictured(frame_slots=4))

    def written(writer: int) -> InsertAnswer:
        columns = {"number": np.zeros(1, np.int64), "stack": np.array([[0, 1]])}
        frames = np.zeros((3, 2, 2, 1), np.uint8)
        return shard.insert(held, WriterInsert(uuid.UUID(int=writer).hex, 1, 1, columns, frames=frames))

    assert written(1) == InsertAnswer()
    with pytest.raises(MemoryExhausted, match="writers keep 3 of 4 frames, and 3 more exceed the capacity"):
        written(2)
    now[0] = served_table.SILENT_SECONDS + 1
    assert written(2) == InsertAnswer()
    assert held.size == 1, "the first item was evicted with its frames"


def test_number_of_writers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_table, "MAX_WRITERS", 3)
    shard = ReplayService(LARGE)
    held = shard.register(numbered())
    for number in range(10):
        assert inserted(shard, held, 1, writer=uuid.UUID(int=number).hex) == InsertAnswer()
    assert len(held._writers) == 3
    assert inserted(shard, held, 2, writer=uuid.UUID(int=0).hex) == InsertAnswer(expected=1)


def test_too_many_tables_and_too_large_samples_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = ReplayService(LARGE)
    held = shard.register(numbered())
    inserted(shard, held, 1)
    with pytest.raises(InvalidRequest, match="may have at most 65536 items, not 65537"):
        shard.sample(held, 2**16 + 1, 0.0)
    monkeypatch.setattr(service, "MAX_TABLES", 1)
    with pytest.raises(MemoryExhausted, match="already has 1 tables, the maximum"):
        shard.register(numbered(), "s")


def test_concurrent_callers_keep_the_ratio_and_lose_no_item() -> None:
    shard = ReplayService(LARGE)
    held = shard.register(numbered(10**4, samples_per_insert=4.0, min_size=20, error_buffer=64.0))

    def write(writer: int) -> None:
        for number in range(1, 201):
            while inserted(shard, held, number, 2, uuid.UUID(int=writer).hex, wait=1.0).not_yet:
                pass

    drawn = [0]

    def sample() -> None:
        while drawn[0] < 3104:
            if shard.sample(held, 8, 1.0) is not None:
                drawn[0] += 8

    threads = [threading.Thread(target=write, args=(1,)), threading.Thread(target=write, args=(2,))]
    threads.append(threading.Thread(target=sample))
    for thread in threads:
        thread.daemon = True
        thread.start()
    for thread in threads:
        thread.join(120)
    wait_until(lambda: not any(thread.is_alive() for thread in threads), "the threads have ended")
    assert (held.size, held.statistics.inserts, held.statistics.overruns) == (800, 800, 0)
    assert held.limiter.balance == 4 * 800 - 3104


class Crowded:
    """A shard with memory for `tables` tables of sessions, and a clock."""

    def __init__(self, tables: int) -> None:
        self.now = 0.0
        self.table = numbered(10**4)
        self.shard = ReplayService(tables * self.table.spec.bytes(), clock=lambda: self.now)

    def register(self, session: str, client: str = "") -> ServedTable:
        self.now += 1.0
        held = self.shard.register(self.table, session, client)
        inserted(self.shard, held, 1)
        return held

    @property
    def sessions(self) -> list[str]:
        return [held.session for held in self.shard.tables()]


def test_tables_of_ended_sessions_are_dropped_first() -> None:
    crowded = Crowded(3)
    living = crowded.register("living")
    for number in range(20):
        crowded.register(f"gone {number}").deregister(WRITER)
    assert crowded.sessions == ["living", "gone 18", "gone 19"]
    inserted(crowded.shard, living, 2)
    assert living.size == 2
    back = crowded.register("gone 19")
    assert back.size == 2, "a session that registers again has its items"
    crowded.register("other")
    with pytest.raises(MemoryExhausted):
        crowded.register("one more")
    assert crowded.sessions == ["living", "gone 19", "other"]


def test_tables_of_silent_sessions_are_dropped_after_a_minute() -> None:
    crowded = Crowded(2)
    crowded.register("killed")
    heard = crowded.register("heard")
    crowded.now += service.SILENT_SESSION_SECONDS
    crowded.shard.find(heard.incarnation)
    crowded.register("new")
    assert crowded.sessions == ["heard", "new"]


@pytest.mark.parametrize(("units", "living"), [(4, 0), (2, 2)])
def test_rejected_table_drops_no_other_table(units: int, living: int) -> None:
    crowded = Crowded(3)
    crowded.register("silent")
    crowded.now += service.SILENT_SESSION_SECONDS
    sessions = ["silent", *(f"living {number}" for number in range(living))]
    for session in sessions[1:]:
        crowded.register(session)
    with pytest.raises(MemoryExhausted):
        crowded.shard.register(numbered(units * 10**4), "large")
    assert crowded.sessions == sessions


def test_one_client_cannot_keep_the_memory_from_others() -> None:
    crowded = Crowded(4)
    for number in range(4):
        crowded.register(f"greedy {number}", "greedy")
    crowded.register("a", "honest")
    assert crowded.sessions == ["greedy 1", "greedy 2", "greedy 3", "a"]
    crowded.register("b", "honest")
    with pytest.raises(MemoryExhausted):
        crowded.register("greedy 0", "greedy")
    with pytest.raises(MemoryExhausted):
        crowded.register("c", "honest")
    crowded.register("c", "third")
    assert sorted(held.owner for held in crowded.shard.tables()).count("client third") == 1


def test_invalid_client_name_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="a client"):
        ReplayService(LARGE).register(numbered(), "s", "x" * 200)
