"""Unusable checkpoints are kept, on disk and in S3."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore, NoUsableCheckpoint, Store, StoreError
from support.forged_checkpoints import put, sealed
from support.s3_server import S3Server

Damage = Callable[[Store, str], None]


@pytest.fixture(
    params=["directory", pytest.param("S3", marks=[pytest.mark.slow, pytest.mark.checks("relaax/checkpoint")])]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "directory":
        return LocalStore(tmp_path / "checkpoints")
    s3: S3Server = request.getfixturevalue("s3")
    return s3.store()


def save(store: Store, step: int, keep: int = 5, manager: CheckpointManager | None = None, **more: Any) -> str:
    parts = {"shard-0": {"parameters": np.full(10, step, np.float32)}}
    manager = manager or CheckpointManager(store, keep=keep, keep_best=0)
    return manager.save(step, parts, {"mean_return": None, **more}).checkpoint_id


def cut_part(store: Store, checkpoint_id: str) -> None:
    key = f"{checkpoint_id}/shard-0.safetensors"
    store.put(key, store.get(key)[:-1])


def cut_manifest(store: Store, checkpoint_id: str) -> None:
    key = f"{checkpoint_id}/manifest.json"
    store.put(key, store.get(key)[:-3])


def forge(store: Store, checkpoint_id: str, *keys: str, value: object) -> None:
    key = f"{checkpoint_id}/manifest.json"
    manifest = json.loads(store.get(key))
    put(*keys, value=value)(manifest)
    store.put(key, sealed(manifest))


def of_format_2(store: Store, checkpoint_id: str) -> None:
    forge(store, checkpoint_id, "format", value=2)


def contents(store: Store) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.list()}


@pytest.mark.parametrize("damage", [cut_part, cut_manifest, of_format_2])
def test_without_a_usable_checkpoint_nothing_changes(store: Store, damage: Damage) -> None:
    for step in range(5):
        damage(store, save(store, step))
    before = contents(store)
    for _ in range(2):
        with pytest.raises(NoUsableCheckpoint, match="relaax checkpoints remove .* 00000005-4"):
            CheckpointManager(store).restore()
    assert contents(store) == before


@pytest.mark.parametrize("damage", [cut_part, cut_manifest])
def test_damaged_checkpoints_are_set_aside_and_kept(
    store: Store, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [save(store, step) for step in (1, 2, 3)]
    for checkpoint_id in ids[1:]:
        damage(store, checkpoint_id)
    damaged = {key: value for key, value in contents(store).items() if not key.startswith(ids[0])}
    restored = CheckpointManager(store).restore()
    assert restored is not None
    assert restored.checkpoint_id == ids[0]
    assert f"relaax checkpoints remove {store.location} {ids[2]}" in caplog.text
    later = CheckpointManager(store, keep=2, keep_best=0)  # a later start, which has not read them
    later.clean()
    saved = [save(store, step, manager=later) for step in (4, 5, 6)]
    assert later.published() == [saved[2], saved[1]]
    assert list(later.aside()) == [ids[2], ids[1]]
    there = contents(store)
    assert {key: there[key] for key in damaged} == damaged
    for checkpoint_id in ids[1:]:
        later.remove(checkpoint_id)
    assert {key.partition("/")[0] for key in store.list()} == set(saved[1:])


@pytest.mark.parametrize("damage", [cut_manifest, of_format_2])
def test_unreadable_checkpoints_are_not_deleted(store: Store, damage: Damage) -> None:
    old = [save(store, step) for step in (1, 2, 3)]
    damage(store, old[0])
    before = {key: value for key, value in contents(store).items() if key.startswith(old[0])}
    manager = CheckpointManager(store, keep=1, keep_best=0)
    assert manager.restore() is not None
    newest = save(store, 4, manager=manager)
    there = contents(store)
    assert {key: there[key] for key in before} == before
    assert {key.partition("/")[0] for key in there} == {old[0], newest}
    assert (f"{old[0]}/damaged.json" in there) == (damage is cut_manifest)


def test_a_checkpoint_of_a_later_version_blocks_older_ones(store: Store) -> None:
    save(store, 1)
    of_format_2(store, save(store, 2))
    cut_part(store, save(store, 3))
    before = contents(store)
    manager = CheckpointManager(store)
    with pytest.raises(NoUsableCheckpoint, match="checkpoint 00000002-2 in .* in format 2; this version supports 1"):
        manager.restore()
    assert contents(store) == before
    for checkpoint_id in ("00000002-2", "00000003-3"):
        manager.remove(checkpoint_id)
    restored = CheckpointManager(store).restore()
    assert restored is not None
    assert restored.checkpoint_id == "00000001-1"


def test_training_does_not_restart_if_all_were_set_aside(store: Store) -> None:
    good, bad = save(store, 1), save(store, 2)
    cut_part(store, bad)
    assert CheckpointManager(store).restore() is not None
    CheckpointManager(store).remove(good)
    with pytest.raises(NoUsableCheckpoint, match="00000002-2: 00000002-2/shard-0.safetensors has "):
        CheckpointManager(store).restore()
    store.delete(f"{bad}/damaged.json")
    store.put(f"{bad}/shard-0.safetensors", b"")
    CheckpointManager(store).remove(bad)
    assert CheckpointManager(store).restore() is None


@pytest.mark.parametrize(
    ("keys", "value", "sentence"),
    [
        (("parts", "shard-0", "key"), "../../../etc/passwd", "key is '../../../etc/passwd'"),
        (("parts", "shard-0", "key"), "00000001-1/shard-0.safetensors", "key is '00000001-1/shard-0.safetensors'"),
        (("parts", "shard-0", "bytes"), 10**15, "bytes, not 1000000000000000"),
        (("id",), "00000001-1", "the manifest in the folder of 00000002-2 belongs to '00000001-1'"),
    ],
)
def test_a_manifest_of_another_checkpoint_is_damaged(
    store: Store, keys: tuple[str, ...], value: object, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    good, forged = save(store, 1), save(store, 2)
    forge(store, forged, *keys, value=value)
    restored = CheckpointManager(store).restore()
    assert restored is not None
    assert restored.checkpoint_id == good
    assert sentence in caplog.text


def test_unrestorable_checkpoints_are_not_published(store: Store) -> None:
    kept = save(store, 1)
    manager = CheckpointManager(store)
    with pytest.raises(StoreError, match="element 3 of 'parameters' is inf"):
        manager.save(2, {"shard-0": {"parameters": np.array([0, 0, 0, np.inf], np.float32)}}, {})
    with pytest.raises(StoreError, match="could not be decoded again: the manifest's mean_return is inf"):
        save(store, 2, mean_return=float("inf"))
    assert CheckpointManager(store).published() == [kept]


def test_a_too_long_value_is_not_read(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from relaax.checkpoint import InvalidValue
    from relaax.checkpoint import s3 as module

    store = s3.store()
    store.put("x", b"12345")
    monkeypatch.setattr(module, "MAX_VALUE_BYTES", 4)
    with pytest.raises(InvalidValue, match="has 5 bytes; a manifest or lease has at most 4"):
        store.get("x")
    assert store.size("x") == 5


def test_no_part_is_written_through_a_link(tmp_path: Path) -> None:
    store, elsewhere = LocalStore(tmp_path / "store"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    store.put("a/x", b"1")
    (tmp_path / "store" / "b").symlink_to(elsewhere)
    with pytest.raises(StoreError, match="it is a link"):
        store.put("b/x", b"1")
    (elsewhere / "y").write_bytes(b"1")
    with pytest.raises(StoreError, match="its path contains a link"):
        store.get("b/y")
    store.clean()
    assert (tmp_path / "store" / "b").is_symlink()
