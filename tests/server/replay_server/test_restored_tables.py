"""Checkpoints of tables, saved and restored in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore, Store, StoreError
from relaax.server.command.termination import EndRequests
from relaax.server.replay_server.served_table import ServedTable, WriterInsert
from relaax.server.replay_server.service import ReplayService
from relaax.server.replay_server.table_checkpoints import MAX_INCARNATIONS, TableCheckpoints
from support.replay_servers import LARGE, numbered


@pytest.fixture
def ends() -> Iterator[EndRequests]:
    made = EndRequests()
    yield made
    made.close()


def restored_checkpoints(service: ReplayService, store: Store, ends: EndRequests) -> TableCheckpoints:
    """Return the checkpoints of a service, after a restore."""
    checkpoints = TableCheckpoints(service, CheckpointManager(store, 1, 0, finite=False), 3600.0)
    checkpoints.restore(ends)
    return checkpoints


def fill(service: ReplayService, count: int, sequence: int = 1) -> ServedTable:
    """Insert items of one writer into a table; return it."""
    held = service.register(numbered(100))
    columns = {"number": np.arange(count)}
    service.insert(held, WriterInsert("ab" * 16, sequence, count, columns, force=True))
    return held


def test_restored_table_has_its_last_incarnations(tmp_path: Path, ends: EndRequests) -> None:
    store, lives = LocalStore(tmp_path), []
    for restart in range(MAX_INCARNATIONS + 2):
        service = ReplayService(LARGE)
        checkpoints = restored_checkpoints(service, store, ends)
        held = fill(service, 1, sequence=restart + 1)
        assert (held.size, held.earlier_incarnations) == (restart + 1, tuple(lives[-MAX_INCARNATIONS:]))
        lives.append(held.incarnation)
        assert checkpoints.finish()
    assert len(set(lives)) == len(lives)


def test_restored_tables_of_sessions_count_for_their_client(tmp_path: Path, ends: EndRequests) -> None:
    store, table = LocalStore(tmp_path), numbered(100)
    for _ in range(2):
        service = ReplayService(3 * table.spec.bytes())
        checkpoints = restored_checkpoints(service, store, ends)
        for number in range(3):
            service.register(table, f"g{number}", "greedy")
        assert checkpoints.finish()
    service.register(table, "h", "honest")
    assert [held.owner for held in service.tables()] == ["client greedy", "client greedy", "client honest"]


def test_failed_checkpoint_leaves_only_the_previous_one(tmp_path: Path, ends: EndRequests) -> None:
    class Refusing(LocalStore):
        refuses = False

        def put_if(self, key: str, value: bytes, tag: str | None) -> str:
            if self.refuses:
                raise StoreError("full")
            return super().put_if(key, value, tag)

    store, service = Refusing(tmp_path), ReplayService(LARGE)
    checkpoints = restored_checkpoints(service, store, ends)
    fill(service, 10)
    first = checkpoints.save(10, {}, {})
    before = store.list()
    fill(service, 10, sequence=2)
    store.refuses = True
    with pytest.raises(StoreError, match="full"):
        checkpoints.save(20, {}, {})
    assert store.list() == before
    store.refuses = False
    second = checkpoints.save(20, {}, {})
    assert CheckpointManager(store).published() == [second.checkpoint_id] != [first.checkpoint_id]
    assert checkpoints.bytes > 0 and checkpoints.seconds is not None
