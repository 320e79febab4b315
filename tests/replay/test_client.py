"""The client by gRPC and through memory, with shards in this process."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from relaax.replay import replay_pb2
from relaax.replay.client import sampler as shard_sampler
from relaax.replay.client import writer as remote_writer
from relaax.replay.client.client import ReplayClient
from relaax.replay.client.shards import PriorityUpdates
from relaax.replay.interfaces import Insertion, ReplayError, ReplayTraffic, ReplayUnavailable, Sampled
from relaax.server.replay_server import served_table
from support import replay_servers
from support.processes import wait_until
from support.replay_servers import Shard, client_of, numbered, numbers, pictured, serving
from support.unanswered import Unanswered
from support.unused_address import unused_address


@pytest.fixture(autouse=True, params=["grpc", "shared_memory"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_servers, "SHARE_MEMORY", request.param == "shared_memory")


def sampled(client: ReplayClient, count: int, timeout: float = 30.0) -> Sampled:
    found = client.sample(count, timeout)
    assert found is not None
    assert [len(column) for column in found.columns.values()] == [count] * len(found.columns)
    assert found.probabilities.shape == found.ages.shape == found.places.shape == found.keys.shape == (count,)
    return found


def flush(client: ReplayClient) -> None:
    """Wait until all inserts are stored."""
    for writer in client._writers:
        writer._deliver_pending()


def table_of(shard: Shard) -> Any:
    return next(iter(shard.service._tables.values()))


def test_inserted_items_are_sampled() -> None:
    with serving() as shards, client_of(shards, numbered()) as client:
        assert client.sample(1, 0.0) is None
        (writer,) = client.writers
        writer.insert(numbers(1, 2, 3, priorities=[1.0, 0.0, 3.0]))
        found = sampled(client, 400)
        assert set(found.columns["number"].tolist()) == {1, 3}
        np.testing.assert_allclose(found.probabilities, np.where(found.columns["number"] == 3, 0.75, 0.25))
        assert (found.size, set(found.ages.tolist())) == (3, {0, 2})
        weights = found.importance_weights(1.0)
        np.testing.assert_allclose(weights, np.where(found.columns["number"] == 3, 1 / 3, 1.0), rtol=1e-6)


@pytest.mark.parametrize("before", [0, 3, 4])
def test_last_items_are_inserted_when_the_client_closes(before: int) -> None:
    """`before`: number of earlier items. The limiter accepts 4."""
    declaration = numbered(samples_per_insert=1.0, min_size=1, error_buffer=4.0)
    with serving() as shards:
        with client_of(shards, declaration) as client:
            (writer,) = client.writers
            for number in range(before):
                writer.insert(numbers(number))
            flush(client)
            writer.insert_at_end(numbers(10, 11))
            assert table_of(shards[0]).size == before
        assert table_of(shards[0]).size == before + 2


def test_last_items_are_lost_without_a_server() -> None:
    with serving() as shards, client_of(shards, numbered(), patience=5.0) as client:
        shards[0].stop()
        client.writers[0].insert_at_end(numbers(1))
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < 30


def test_priorities_are_updated_without_waiting() -> None:
    with serving() as shards, client_of(shards, numbered()) as client:
        client.writers[0].insert(numbers(1, 2))
        found = sampled(client, 64)
        client.update_priorities(found, np.where(found.columns["number"] == 1, 0.0, 5.0))
        table = table_of(shards[0])
        wait_until(lambda: table.total_priority == 5.0, "the priorities are updated")
        assert set(sampled(client, 64).columns["number"].tolist()) == {2}
        with pytest.raises(ValueError, match="a priority must be between 0"):
            client.update_priorities(found, np.full(64, np.nan))
        client.writers[0].insert(numbers(*range(1000)))
        wait_until(lambda: table.statistics.inserts == 1002, "the new items are stored")
        client.update_priorities(found, np.ones(64))
        wait_until(lambda: table.statistics.stale_updates == 64, "updates of evicted items are counted")


def test_learner_samples_ahead() -> None:
    with serving() as shards, client_of(shards, numbered()) as actor:
        actor.writers[0].insert(numbers(1, priorities=[1.0]))
        flush(actor)
        table = table_of(shards[0])
        with client_of(shards, numbered(), actors=(), ahead=True) as learner:
            found = sampled(learner, 4)
            ahead = shard_sampler.BATCHES_AT_ONCE if replay_servers.SHARE_MEMORY else 1
            wait_until(lambda: table.statistics.samples == 4 + 4 * ahead, "the next items are drawn")
            actor.writers[0].insert(numbers(2, priorities=[1.0]))
            flush(actor)
            learner.update_priorities(found, np.zeros(4))
            later = [set(sampled(learner, 4).columns["number"].tolist()) for _ in range(3 * ahead)]
            assert later[:ahead] == [{1}] * ahead, "they were drawn before the second item was inserted"
            wait_until(lambda: set(sampled(learner, 4).columns["number"].tolist()) == {2}, "the update is applied")
            assert sampled(learner, 9).probabilities.tolist() == [1.0] * 9
            assert learner.dropped_updates == 0


def test_learner_that_samples_ahead_keeps_to_the_limiter() -> None:
    declaration = numbered(samples_per_insert=1.0, min_size=4, error_buffer=8.0)
    with serving() as shards, client_of(shards, declaration) as actor:
        actor.writers[0].insert(numbers(*range(4)))
        flush(actor)
        with client_of(shards, declaration, actors=(), ahead=True) as learner:
            batches = 0
            while learner.sample(4, 0.1) is not None:
                batches += 1
            assert batches == 2
            actor.writers[0].insert(numbers(*range(4)))
            assert len(sampled(learner, 4).keys) == 4


def test_draws_ahead_over_shards_are_proportional_to_priority() -> None:
    with serving(2) as shards, client_of(shards, numbered(), actors=[0, 1]) as actor:
        for writer, priority in zip(actor.writers, (1.0, 3.0), strict=True):
            writer.insert(numbers(int(priority), priorities=[priority]))
        flush(actor)
        with client_of(shards, numbered(), actors=(), ahead=True) as learner:
            batches = [sampled(learner, 100) for _ in range(40)]
        large = np.concatenate([batch.columns["number"] for batch in batches]) == 3
        assert abs(large.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 4000)
        for batch in batches:
            expected = np.where(batch.columns["number"] == 3, 0.75, 0.25)
            np.testing.assert_allclose(batch.probabilities, expected)


def test_updates_during_a_call_are_merged_and_the_last_applies() -> None:
    with serving() as shards, client_of(shards, numbered()) as client:
        client.writers[0].insert(numbers(1, 2))
        found = sampled(client, 8)
        for number in range(200):
            client.update_priorities(found, np.full(8, float(number)))
        table = table_of(shards[0])
        distinct = len(set(found.keys.tolist()))
        wait_until(lambda: table.total_priority == distinct * 199.0 + (2 - distinct), "the last update is applied")
        calls = shards[0].server._port.protection.reader
        assert calls.ended == {"late": 0, "crowded": 0}
        assert client.dropped_updates == 0


def test_pending_updates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as shards, client_of(shards, numbered()) as client:
        updates: PriorityUpdates = client._updates[0]
        updates._call = object()  # a call that never ends
        for _ in range(3):
            updates.put("", np.zeros(30_000, np.uint64), np.zeros(30_000))
        assert client.dropped_updates == 30_000
        updates._call = None


def test_frames_are_sent_once_and_stacked() -> None:
    with serving() as shards, client_of(shards, pictured()) as client:
        (writer,) = client.writers
        frames = np.arange(6, dtype=np.uint8)[:, None, None, None] + np.zeros((6, 2, 2, 1), np.uint8)
        for last in range(6):
            first = max(0, last - 1)
            stack = np.array([[last - 1, last]])
            writer.insert(
                Insertion({"number": np.array([last]), "stack": stack}, None, frames[first : last + 1], first)
            )
        table = table_of(shards[0])
        flush(client)
        assert table._table.frames == 6
        found = sampled(client, 200)
        for number, stack in zip(found.columns["number"], found.columns["stack"], strict=True):
            np.testing.assert_array_equal(stack[0, 0], [max(0, number - 1) if number else 0, number])


def test_removed_writer_sends_its_frames_again() -> None:
    with serving() as shards, client_of(shards, pictured()) as client:
        (writer,) = client.writers
        frames = np.arange(3, dtype=np.uint8)[:, None, None, None] + np.zeros((3, 2, 2, 1), np.uint8)

        def insert(last: int) -> None:
            writer.insert(
                Insertion({"number": np.array([last]), "stack": np.array([[0, last]])}, None, frames[: last + 1])
            )

        insert(1)
        table_of(shards[0]).deregister(writer._name)  # type: ignore[attr-defined]
        insert(2)
        found = sampled(client, 50)
        assert set(found.columns["stack"][:, 0, 0, 1].tolist()) == {1, 2}
        assert client.lost == 0


def test_environments_are_distributed_over_shards() -> None:
    with serving(2) as shards, client_of(shards, numbered(), actors=[3, 4, 5, 8]) as client:
        assert [writer.environments.tolist() for writer in client.writers] == [[1, 3], [0, 2]]
        for number, writer in enumerate(client.writers):
            writer.insert(numbers(number))
        assert [table_of(shard).size for shard in shards] == [1, 1]
    with serving(2) as shards, client_of(shards, numbered(), actors=[1]) as client:
        assert [writer.environments.tolist() for writer in client.writers] == [[0]]
        client.writers[0].insert(numbers(7))
        assert [table_of(shard).size for shard in shards] == [0, 1]
        assert set(sampled(client, 20).places.tolist()) == {1}, "an empty shard is not drawn from"
    with serving() as shards, client_of(shards, numbered(), actors=()) as client:
        assert client.writers == []


def chi_squared(counts: np.ndarray, expected: np.ndarray) -> float:
    return float((((counts - expected) ** 2) / expected).sum())


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_draws_over_all_shards_are_proportional_to_priority(shards: int) -> None:
    """Items with priorities 1 to 12, distributed unevenly, are drawn in proportion to priority over all shards."""
    priorities = np.arange(1.0, 13.0)
    with serving(shards) as started, client_of(started, numbered(), actors=range(shards)) as client:
        for item, priority in enumerate(priorities):
            client.writers[item % 5 % shards].insert(numbers(item, priorities=[priority]))
        wait_until(
            lambda: sampled(client, 1).size == 12 and sum(link.state.size for link in client._group.links) == 12,
            "all states are known",
        )
        counts, inverse = np.zeros(12), 0.0
        draws = 40
        for _ in range(draws):
            found = sampled(client, 500)
            counts += np.bincount(found.columns["number"], minlength=12)
            np.testing.assert_allclose(found.probabilities, priorities[found.columns["number"]] / 78.0)
            inverse += float((1 / found.probabilities).mean())
        assert chi_squared(counts, 500 * draws * priorities / 78.0) < 50.0, "11 degrees of freedom, p 0.000001"
        assert inverse / draws == pytest.approx(12, rel=0.05)


def test_writers_and_learners_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_writer, "LONGEST_WAIT", 600.0)
    declaration = numbered(samples_per_insert=1.0, min_size=4, error_buffer=4.0)
    patient = {"timeout": 60.0}  # on a slow machine, a repeated sample would count twice
    with (
        serving() as shards,
        client_of(shards, declaration, **patient) as client,
        client_of(shards, declaration, **patient) as learner,
    ):
        (writer,) = client.writers
        for number in range(8):
            writer.insert(numbers(number))
        passed = threading.Event()

        def insert_more() -> None:
            for number in range(8, 40):
                writer.insert(numbers(number))
            passed.set()

        thread = threading.Thread(target=insert_more)
        thread.start()
        assert not passed.wait(0.2)
        drawn = 0
        while not passed.is_set() or drawn < 32:
            assert learner.sample(2, 30.0) is not None
            drawn += 2
        thread.join(60)
        wait_until(lambda: table_of(shards[0]).limiter.inserts == 40, "all inserts are stored")
        assert table_of(shards[0]).limiter.overruns == client.overruns == 0
        assert abs(table_of(shards[0]).limiter.balance - 4) <= 4
        while learner.sample(2, 0.0) is not None:
            drawn += 2
        assert drawn == 40, "exactly the samples that the inserts allow"


def test_writers_without_learners_wait_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_writer, "LONGEST_WAIT", 0.3)
    monkeypatch.setattr(served_table, "UNDRAWN_SECONDS", 0.3)
    monkeypatch.setattr(remote_writer, "CALL_WAIT", 0.1)
    declaration = numbered(samples_per_insert=1.0, min_size=1, error_buffer=2.0)
    with serving() as shards, client_of(shards, declaration) as client:
        (writer,) = client.writers
        for number in range(3):
            writer.insert(numbers(number))
        began = time.monotonic()
        writer.insert(numbers(3, 4))
        flush(client)
        assert 0.2 < time.monotonic() - began < 30
        assert (client.overruns, table_of(shards[0]).limiter.overruns, table_of(shards[0]).size) == (2, 2, 5)
        monkeypatch.setattr(remote_writer, "LONGEST_WAIT", 10**9)
        writer.insert(numbers(5))  # after one wait without a learner, the writer does not wait again
        assert client.overruns == 3
        sampled(client, 2)  # a learner is back
        for number in range(6, 8):
            writer.insert(numbers(number))
        assert client.overruns == 3


def test_shard_whose_limiter_refuses_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_sampler, "CALL_WAIT", 0.1)
    declaration = numbered(samples_per_insert=1.0, min_size=2, error_buffer=100.0)
    with serving(2) as shards, client_of(shards, declaration, actors=[0, 1]) as client:
        for number in range(40):
            client.writers[0].insert(numbers(number))
        client.writers[1].insert(numbers(100))
        while table_of(shards[1]).limiter.await_sample(1, 0):  # shard 1 allows no more samples; shard 0 allows 139
            pass
        for _ in range(6):
            found = sampled(client, 20)
            assert set(found.places.tolist()) == {0}
            np.testing.assert_allclose(found.probabilities[found.probabilities != 1 / 41], 1 / 40)
        assert client.sample(20, 0.3) is None


def test_different_declaration_is_rejected_with_the_difference() -> None:
    message = "table 'numbers' has another declaration: alpha is 1.0 there and 0.5 here"
    with serving() as shards, client_of(shards, numbered()), pytest.raises(ReplayError, match=message):
        ReplayClient([shards[0].address], numbered(alpha=0.5))


def test_table_beyond_the_memory_limit_is_rejected() -> None:
    with (
        serving(memory=1000) as shards,
        pytest.raises(ReplayError, match="replay server .*relaax-replay-server.memory"),
    ):
        ReplayClient([shards[0].address], numbered())


def test_addresses_in_wrong_order_are_rejected() -> None:
    with serving(2) as shards:
        addresses = [shard.address for shard in shards]
        with pytest.raises(ReplayError, match="is shard 1, but it is listed as shard 0"):
            ReplayClient(addresses[::-1], numbered())
        with pytest.raises(ReplayError, match="is one of 2 shards, but 1 address was given"):
            ReplayClient(addresses[:1], numbered())


def test_unreachable_servers_are_reported_after_patience() -> None:
    with unused_address() as address, unused_address() as other:
        with pytest.raises(ReplayUnavailable, match=f"replay server {address} was unreachable for 0.3 s: start"):
            ReplayClient([address], numbered(), patience=0.3)
        message = f"all replay servers were unreachable for 0.3 s: start one of {address}, {other}"
        with pytest.raises(ReplayUnavailable, match=message):
            ReplayClient([address, other], numbered(), patience=0.3)


def test_sessions_have_separate_tables() -> None:
    with (
        serving() as shards,
        client_of(shards, numbered(), session="a") as one,
        client_of(shards, numbered(), session="b") as other,
    ):
        one.writers[0].insert(numbers(1))
        other.writers[0].insert(numbers(2))
        assert set(sampled(one, 10).columns["number"].tolist()) == {1}
        assert set(sampled(other, 10).columns["number"].tolist()) == {2}


def test_insert_with_a_lost_answer_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as shards, client_of(shards, numbered(), share_memory=False) as client:
        (writer,) = client.writers
        stub = client._group.links[0].stub
        real = stub.Insert

        def once(request: replay_pb2.InsertRequest, timeout: float) -> Any:
            real(request, timeout=timeout)
            stub.Insert = real
            raise Unanswered

        stub.Insert = once
        writer.insert(numbers(1, 2))
        writer.insert(numbers(3))
        table = table_of(shards[0])
        assert (table.size, table.statistics.duplicates, client.lost) == (3, 1, 0)


def test_possibly_stored_insert_is_not_sent_to_another_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard stores an insert, and becomes unavailable before it answers."""
    monkeypatch.setattr(remote_writer, "GRACE_SECONDS", 0.1)
    with serving(2) as shards, client_of(shards, numbered(), actors=[1], share_memory=False) as client:
        (writer,) = client.writers
        link = client._group.links[1]
        real = link.stub.Insert

        def lose_answer(request: replay_pb2.InsertRequest, timeout: float) -> Any:
            real(request, timeout=timeout)
            monkeypatch.setattr(link, "poll_registration", lambda timeout: None)
            raise Unanswered

        link.stub.Insert = lose_answer
        writer.insert(numbers(1, 2))
        assert [table_of(shard).size for shard in shards] == [0, 2]
        assert client.lost == 2
        writer.insert(numbers(3))
        assert [table_of(shard).size for shard in shards] == [1, 2]


def test_dropped_table_is_registered_again() -> None:
    with serving(session_timeout=600.0) as shards, client_of(shards, numbered(), session="s") as client:
        client.writers[0].insert(numbers(1))
        found = sampled(client, 4)
        table_of(shards[0]).last_request = -1e9
        shards[0].service.sweep()
        client.update_priorities(found, np.ones(4))
        wait_until(lambda: shards[0].service.lost_updates == 4, "the updates are counted")
        client.writers[0].insert(numbers(2))
        assert set(sampled(client, 10).columns["number"].tolist()) == {2}


@pytest.mark.slow
@pytest.mark.checks("relaax/replay", "relaax/server/replay_server")
def test_incomplete_batch_is_dropped_with_its_table() -> None:
    """The keys of a new table restart, so an old key would refer to another item."""
    declaration = numbered(samples_per_insert=1.0, min_size=1, error_buffer=200.0)
    with serving(2) as shards, client_of(shards, declaration, actors=[0, 1], session="s") as client:
        for shard, writer, left in zip(shards, client.writers, (6, 0), strict=True):
            writer.insert(numbers(1))
            limiter = table_of(shard).limiter
            while limiter.await_sample(1, 0):
                pass
            limiter.undo_sample(left)
        while not client._sampler._samples:  # until shard 0 has returned its part of the batch
            assert client.sample(8, 0.0) is None
        table_of(shards[0]).last_request = -1e9
        shards[0].service.sweep()
        client.writers[0].insert(numbers(2))
        found = sampled(client, 8)
        assert set(found.columns["number"][found.places == 0].tolist()) == {2}
        assert found.incarnations[0] == table_of(shards[0]).incarnation


def test_undeclared_items_are_rejected_by_the_client() -> None:
    with serving() as shards, client_of(shards, numbered()) as client:
        (writer,) = client.writers
        with pytest.raises(ValueError, match="items of table 'numbers' must have the fields"):
            writer.insert(Insertion({"other": np.zeros(1)}))
        with pytest.raises(ValueError, match="a priority must be between 0"):
            writer.insert(numbers(1, priorities=[-1.0]))


def test_too_many_items_are_rejected_by_the_shard() -> None:
    with serving() as shards, client_of(shards, numbered(10**5)) as client:
        with pytest.raises(ReplayError, match="an insert may have at most 65536 items, not 70000"):
            client.writers[0].insert(numbers(*range(70_000)))
        client.writers[0].insert(numbers(1))


def test_closed_client_deregisters_its_writer() -> None:
    with serving() as shards:
        with client_of(shards, numbered()) as client:
            client.writers[0].insert(numbers(1))
            assert len(table_of(shards[0])._writers) == 1
        assert (len(table_of(shards[0])._writers), table_of(shards[0]).size) == (0, 1)
        client.close()


def test_all_clients_see_the_traffic_of_all_clients() -> None:
    with serving(2) as shards, client_of(shards, numbered(), actors=(0, 1)) as client:
        assert client.traffic == ReplayTraffic()
        for writer in client.writers:
            writer.insert(numbers(1, 2, 3))
        with client_of(shards, numbered(), actors=()) as learner:
            assert learner.traffic == ReplayTraffic(), "earlier traffic does not count"
            sampled(learner, 10)
            wait_until(lambda: learner.sample(1, 1.0) and learner.traffic.samples >= 11, "the learner's samples count")
            client.writers[0].insert(numbers(4))
            wait_until(lambda: learner.sample(64, 1.0) and learner.traffic.inserts == 1, "inserts of others count")
            wait_until(
                lambda: client.sample(64, 1.0) and client.traffic.inserts == 7,
                "also for the first client",
            )
        asked = [table_of(shard).limiter.samples for shard in shards]
        assert client.traffic.samples <= sum(asked)


def test_answers_out_of_order_are_not_counted_twice() -> None:
    with serving() as shards, client_of(shards, numbered()) as client:
        (link,) = client._group.links
        for inserts in (5, 3, 5, 8):
            state = replay_pb2.TableState(size=inserts, begun=True, inserts=inserts, samples=2 * inserts)
            link.update_state(link.incarnation or "", state)
        assert client.traffic == ReplayTraffic(8, 16)
        assert link.state.size == 8
        link.update_state("of another incarnation", replay_pb2.TableState(inserts=100))
        assert client.traffic == ReplayTraffic(8, 16)
