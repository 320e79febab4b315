"""Many sessions at a replay server, over gRPC."""

from __future__ import annotations

import pytest

from relaax.replay.interfaces import ReplayError
from support.replay_servers import client_of, numbered, numbers, serving

TABLE = numbered(10_000)
ROOM = 3 * TABLE.spec_of_shard(2).bytes()


@pytest.mark.parametrize("inserts", [False, True])
def test_ended_sessions_do_not_block_new_sessions(inserts: bool) -> None:
    with serving(2, ROOM) as shards, client_of(shards, TABLE, session="honest", patience=30.0) as honest:
        (writer,) = honest.writers
        writer.insert(numbers(1, 2, 3))
        for number in range(12):
            with client_of(shards, TABLE, session=f"s{number}", patience=30.0) as other:
                if inserts:
                    other.writers[0].insert(numbers(7))
        with client_of(shards, TABLE, session="newcomer", patience=30.0) as newcomer:
            newcomer.writers[0].insert(numbers(4))
            writer.insert(numbers(5))
            honest.sample(1, 30.0)
            assert [len(shard.service.tables()) for shard in shards] == [3, 3]
            sizes = {held.session: held.size for held in shards[0].service.tables()}
            assert (sizes["honest"], sizes["newcomer"]) == (4, 1)


def test_client_with_most_memory_loses_tables_to_another() -> None:
    with serving(1, 3 * TABLE.spec.bytes()) as shards:
        sessions = [client_of(shards, TABLE, session=f"g{number}", client="greedy") for number in range(3)]
        greedy = [session.__enter__() for session in sessions]
        try:
            with client_of(shards, TABLE, session="h", client="honest", patience=30.0) as honest:
                honest.writers[0].insert(numbers(1))
                with pytest.raises(ReplayError, match="and the limit is"):
                    greedy[0].writers[0].insert(numbers(2))
                owners = sorted(held.owner for held in shards[0].service.tables())
                assert owners == ["client greedy", "client greedy", "client honest"]
        finally:
            for session in sessions:
                session.__exit__(None, None, None)
