"""Checkpoints whose parts are written by several processes."""

from __future__ import annotations

import numpy as np
import pytest
import safetensors.numpy

from relaax.checkpoint import CheckpointManager, Damaged, StoreError
from relaax.checkpoint.checkpoint import describe_part
from relaax.checkpoint.manifest import encode_manifest
from support.stores import MemoryStore


def vector(value: float) -> dict[str, np.ndarray]:
    return {"parameters": np.full(10, value, np.float32)}


def test_parts_of_several_writers_are_published_together() -> None:
    store = MemoryStore()
    leader, others = CheckpointManager(store), [CheckpointManager(store) for _ in range(2)]
    checkpoint_id = leader.begin_checkpoint(70)
    described = {
        f"shard-{i}": shard.write_part(checkpoint_id, f"shard-{i}", vector(i)) for i, shard in enumerate(others)
    }
    assert leader.published() == []
    manifest = leader.publish(checkpoint_id, 70, described, {"mean_return": 1.0})
    assert manifest == leader.manifest(checkpoint_id)
    whole = others[0].load(checkpoint_id)
    np.testing.assert_array_equal(whole.parts["shard-1"]["parameters"], vector(1)["parameters"])
    assert list(others[1].load(checkpoint_id, ["shard-1"]).parts) == ["shard-1"]
    with pytest.raises(Damaged, match="has no part 'shard-7'"):
        leader.load(checkpoint_id, ["shard-7"])


def test_failed_deletions_do_not_fail_a_checkpoint(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    manager = CheckpointManager(store, keep=1, keep_best=0)
    manager.save(1, {"shard-0": vector(0)}, {})
    checkpoint_id = manager.begin_checkpoint(2)
    described = {"shard-0": manager.write_part(checkpoint_id, "shard-0", vector(0))}
    with monkeypatch.context() as locked:
        locked.setattr(store, "delete", lambda key: pytest.fail("it deletes"))
        manager.publish(checkpoint_id, 2, described, {})
        refused = manager.begin_checkpoint(3)
        described = {"shard-0": manager.write_part(refused, "shard-0", vector(0))}
        store.failing = StoreError("full")
        with pytest.raises(StoreError, match="full"):
            manager.publish(refused, 3, described, {})
        store.failing = None
    listed = store.list
    monkeypatch.setattr(store, "list", lambda prefix="": (_ for _ in ()).throw(StoreError("stalls")))
    manager.delete_old()
    assert "old checkpoints are kept for now: stalls" in caplog.text
    monkeypatch.setattr(store, "list", listed)
    assert len(manager.published()) == 2
    manager.delete_old()
    assert store.list() == [f"{checkpoint_id}/manifest.json", f"{checkpoint_id}/shard-0.safetensors"]


def test_only_the_requested_parts_are_read() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    saved = manager.save(1, {"shard-0": vector(0), "shard-1": vector(1)}, {})
    store.values[f"{saved.checkpoint_id}/shard-0.safetensors"] = b""
    assert manager.load(saved.checkpoint_id, ["shard-1"]).parts
    with pytest.raises(Damaged, match="shard-0"):
        manager.load(saved.checkpoint_id)


def test_abandoned_files_are_deleted_when_the_store_works() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    checkpoint_id = manager.begin_checkpoint(1)
    manager.write_part(checkpoint_id, "shard-0", vector(0))
    delete = store.delete

    def away(key: str) -> None:
        raise StoreError("away")

    store.delete = away  # type: ignore[method-assign]
    manager.abandon(checkpoint_id, ["shard-0"])
    assert manager.begin_checkpoint(1) != checkpoint_id, "a stopped writer may still write into the old one"
    assert len(store.values) == 1
    store.delete = delete  # type: ignore[method-assign]
    manager.save(2, {"shard-0": vector(0)}, {})
    assert store.list() == ["00000003-2/manifest.json", "00000003-2/shard-0.safetensors"]


def test_a_late_part_of_an_abandoned_checkpoint_is_deleted() -> None:
    store = MemoryStore()
    manager, slow = CheckpointManager(store), CheckpointManager(store)
    checkpoint_id = manager.begin_checkpoint(1)
    manager.abandon(checkpoint_id, ["shard-0", "shard-1"])
    slow.write_part(checkpoint_id, "shard-1", vector(1))
    manager.save(2, {"shard-0": vector(0)}, {})
    assert store.list() == ["00000002-2/manifest.json", "00000002-2/shard-0.safetensors"]


def test_an_abandoned_checkpoint_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    older = manager.save(1, {"shard-0": vector(0)}, {})
    put_if = store.put_if

    def stored_without_an_answer(key: str, value: bytes, tag: str | None) -> str:
        put_if(key, value, tag)
        raise StoreError("the answer was lost")

    def away(key: str) -> None:
        raise StoreError("away")

    with monkeypatch.context() as failing:
        failing.setattr(store, "put_if", stored_without_an_answer)
        failing.setattr(store, "delete", away)
        with pytest.raises(StoreError, match="the answer was lost"):
            manager.save(2, {"shard-0": vector(0)}, {})
    assert manager.published() == [older.checkpoint_id]
    restored = manager.restore()
    assert restored is not None
    assert restored.checkpoint_id == older.checkpoint_id
    newer = manager.save(3, {"shard-0": vector(0)}, {})
    assert CheckpointManager(store).published() == [newer.checkpoint_id, older.checkpoint_id]


def test_failed_deletions_per_attempt_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    asked: list[str] = []

    def forbidden(key: str) -> None:
        asked.append(key)
        raise StoreError("forbidden")

    monkeypatch.setattr(store, "delete", forbidden)
    for step in range(20):
        checkpoint_id = manager.begin_checkpoint(step)
        manager.write_part(checkpoint_id, "shard-0", vector(0))
        manager.abandon(checkpoint_id, ["shard-0"])
        assert any(key.startswith(checkpoint_id) for key in asked)
        assert len(asked) <= 3
        asked.clear()
    monkeypatch.undo()
    manager.save(20, {"shard-0": vector(0)}, {})
    assert len(store.list()) == 2


def test_a_damaged_checkpoint_is_not_read_again() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    saved = [manager.save(step, {"shard-0": vector(0)}, {}).checkpoint_id for step in (1, 2)]
    manager.mark_damaged(saved[1], "its SHA-256 differs")  # another shard found the damage
    restored = manager.restore(lambda manifest: list(manifest["parts"]))
    assert restored is not None
    assert restored.checkpoint_id == saved[0]


def test_a_second_manifest_of_one_checkpoint_is_refused() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    saved = manager.save(1, {"shard-0": vector(0)}, {})
    with pytest.raises(StoreError):
        manager.publish(saved.checkpoint_id, 1, saved.manifest["parts"], {"other": True})
    assert "other" not in manager.load(saved.checkpoint_id).manifest


def test_files_written_by_the_library_are_read() -> None:
    """Earlier versions wrote files with the library."""
    store = MemoryStore()
    arrays = {"slots/ms": np.arange(3, dtype=np.float64), **vector(4)}
    data, key = safetensors.numpy.save(arrays), "00000003-9/shard-0.safetensors"
    store.put(key, data)
    part = describe_part(key, [memoryview(data)])
    store.put(
        "00000003-9/manifest.json",
        encode_manifest({"format": 1, "id": "00000003-9", "global_step": 9, "time": 1.7e9, "parts": {"shard-0": part}}),
    )
    checkpoint = CheckpointManager(store).restore()
    assert checkpoint is not None
    for name, array in arrays.items():
        np.testing.assert_array_equal(checkpoint.parts["shard-0"][name], array)
