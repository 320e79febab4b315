"""Copies of checkpoints, which are published under the lease of the target or removed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, Damaged, Lease, LeaseLost, StoreError
from relaax.checkpoint import manager as copying
from relaax.checkpoint.evaluation import evaluation_key
from support.stores import MemoryStore


class Target(MemoryStore):
    """A store whose lease is taken over after `taken_over_after` writes. If `spoils`, it damages parts."""

    def __init__(self, taken_over_after: int = -1) -> None:
        super().__init__()
        self._left = taken_over_after
        self.spoils = False

    def put(self, key: str, value: object) -> None:
        super().put(key, value)  # type: ignore[arg-type]
        if self.spoils and key.endswith(".safetensors"):
            self.values[key] = self.values[key][:-1] + b"x"
        if key != "lease.json":
            self._left -= 1
            if not self._left:
                taken = json.loads(self.values["lease.json"]) | {"holder": "another", "fence": 9}
                self.values["lease.json"] = json.dumps(taken).encode()


@pytest.fixture
def source() -> Iterator[tuple[MemoryStore, str]]:
    store = MemoryStore()
    parts = {f"shard-{i}": {"parameters": np.full(10, i, np.float32)} for i in range(2)}
    checkpoint_id = CheckpointManager(store).save(7, parts, {"mean_return": 1.0}).checkpoint_id
    store.put(evaluation_key(checkpoint_id), b'{"mean": 3.0}')
    yield store, checkpoint_id


def leased(target: MemoryStore) -> Lease:
    lease = Lease(target, ttl=1e6)
    lease.acquire()
    return lease


def contents_without_the_lease(target: MemoryStore) -> dict[str, bytes]:
    return {key: value for key, value in target.values.items() if key != "lease.json"}


def test_copy_is_identical(source: tuple[MemoryStore, str]) -> None:
    store, checkpoint_id = source
    target, read = Target(), []
    lease = leased(target)
    copying.copy(store, target, checkpoint_id, lease, read.append)
    lease.release()
    assert contents_without_the_lease(target) == store.values
    parts = CheckpointManager(store).manifest(checkpoint_id)["parts"].values()
    assert sum(read) == sum(part["bytes"] for part in parts)
    assert target.puts[-2] == f"{checkpoint_id}/manifest.json", "the manifest is written last, except for the lease"


@pytest.mark.parametrize("taken_over_after", [1, 2])
def test_copy_is_not_published_after_its_lease_is_lost(source: tuple[MemoryStore, str], taken_over_after: int) -> None:
    store, checkpoint_id = source
    target = Target(taken_over_after)
    with pytest.raises(LeaseLost, match="with fence 9 now"):
        copying.copy(store, target, checkpoint_id, leased(target))
    assert contents_without_the_lease(target) == {}
    assert json.loads(target.values["lease.json"])["fence"] == 9


def test_part_damaged_in_the_target_is_removed(source: tuple[MemoryStore, str]) -> None:
    store, checkpoint_id = source
    target = Target()
    lease = leased(target)
    target.spoils = True
    with pytest.raises(StoreError, match="memory: "):
        copying.copy(store, target, checkpoint_id, lease)
    lease.release()
    assert contents_without_the_lease(target) == {}


@pytest.mark.parametrize("damage", [b"longer", b""])
def test_part_of_another_size_is_damaged_and_not_read(
    source: tuple[MemoryStore, str], damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, checkpoint_id = source
    key = f"{checkpoint_id}/shard-0.safetensors"
    store.values[key] = store.values[key] + damage if damage else store.values[key][:-1]
    monkeypatch.setattr(store, "pieces", lambda key: pytest.fail("it is read"))
    target = Target()
    lease = leased(target)
    for use in (
        lambda: copying.copy(store, target, checkpoint_id, lease),
        lambda: copying.verify(store, checkpoint_id, lambda count: None),
    ):
        with pytest.raises(Damaged, match="shard-0.safetensors has "):
            use()
    lease.release()
    assert contents_without_the_lease(target) == {}
