from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import CheckpointManager, LocalStore, StoreError
from support.stores import MemoryStore


def save(manager: CheckpointManager, step: int, mean_return: float | None = None) -> str:
    parts = {"shard-0": {"parameters": np.full(100, step, np.float32), "slots/ms": np.arange(3, dtype=np.float64)}}
    return manager.save(step, parts, {"mean_return": mean_return, "counters": {"a": step}}).checkpoint_id


def restored_step(manager: CheckpointManager) -> int | None:
    checkpoint = manager.restore()
    if checkpoint is None:
        return None
    step = int(checkpoint.manifest["global_step"])
    np.testing.assert_array_equal(checkpoint.parts["shard-0"]["parameters"], np.full(100, step, np.float32))
    assert checkpoint.manifest["counters"] == {"a": step}
    return step


def test_a_saved_checkpoint_is_restored() -> None:
    manager = CheckpointManager(MemoryStore())
    assert manager.restore() is None
    save(manager, 10)
    checkpoint = manager.restore()
    assert checkpoint is not None
    assert checkpoint.manifest["format"] == 1
    assert checkpoint.manifest["time"] > 1.6e9
    slot = checkpoint.parts["shard-0"]["slots/ms"]
    assert slot.dtype == np.float64
    np.testing.assert_array_equal(slot, [0, 1, 2])


def test_the_manifest_is_written_last_and_deleted_first() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store, keep=1, keep_best=0)
    save(manager, 1)
    assert [key.rpartition("/")[2] for key in store.puts] == ["shard-0.safetensors", "manifest.json"]
    deleted: list[str] = []
    delete = store.delete
    store.delete = lambda key: (deleted.append(key), delete(key))[1]  # type: ignore[method-assign]
    save(manager, 2)
    assert [key.rpartition("/")[2] for key in deleted] == ["manifest.json", "shard-0.safetensors"]


def test_last_saved_checkpoint_is_newest_even_at_lower_step() -> None:
    manager = CheckpointManager(MemoryStore())
    save(manager, 500)
    save(manager, 20)
    assert restored_step(manager) == 20


def drop(store: MemoryStore, key: str) -> None:
    del store.values[key]


def truncate(store: MemoryStore, key: str) -> None:
    store.values[key] = store.values[key][:-5]


def flip(store: MemoryStore, key: str) -> None:
    data = bytearray(store.values[key])
    data[-20] ^= 1
    store.values[key] = bytes(data)


def empty(store: MemoryStore, key: str) -> None:
    store.values[key] = b""


@pytest.mark.parametrize("file", ["shard-0.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [drop, truncate, flip, empty])
def test_a_damaged_checkpoint_is_logged_and_skipped(
    damage: Callable[[MemoryStore, str], None], file: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    save(manager, 1)
    newest = save(manager, 2)
    damage(store, f"{newest}/{file}")
    assert restored_step(manager) == 1
    if (damage, file) != (drop, "manifest.json"):  # without a manifest it is not a checkpoint
        assert f"checkpoint {newest} in memory is damaged and skipped" in caplog.text


def test_an_unavailable_store_is_not_damage() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    save(manager, 1)

    def away(key: str) -> bytes:
        raise StoreError("away")

    store.get = away  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="away"):
        manager.restore()


def test_a_part_that_reads_back_wrong_is_not_published() -> None:
    store = MemoryStore()
    manager = CheckpointManager(store)
    save(manager, 1)
    put = store.put
    store.put = lambda key, value: put(key, b"".join(value)[:-1])  # type: ignore[method-assign]
    with pytest.raises(StoreError, match=r"shard-0\.safetensors has \d+ bytes, not"):
        save(manager, 2)
    store.put = put  # type: ignore[method-assign]
    assert len(store.values) == 2
    assert restored_step(manager) == 1


def test_the_newest_and_the_best_are_kept() -> None:
    manager = CheckpointManager(MemoryStore(), keep=2, keep_best=1)
    returns = {1: 5.0, 2: 90.0, 3: None, 4: 20.0, 5: 10.0, 6: 30.0}
    for step, mean_return in returns.items():
        save(manager, step, mean_return)
    assert [checkpoint_id.split("-")[1] for checkpoint_id in manager.published()] == ["6", "5", "2"]


def test_mean_of_a_few_lucky_episodes_is_not_the_best() -> None:
    manager = CheckpointManager(MemoryStore(), keep=1, keep_best=1)
    for step, (mean_return, episodes) in enumerate([(-11.0, 2), (-35.0, 100), (-180.0, 400), (-170.0, 600)], 1):
        values = {"shard-0": {"parameters": np.zeros(3, np.float32)}}
        returns = {"episodes": episodes, "last": [], "best": None}
        manager.save(step, values, {"mean_return": mean_return, "returns": returns})
    assert [checkpoint_id.split("-")[1] for checkpoint_id in manager.published()] == ["4", "2"]


def test_damaged_checkpoints_do_not_displace_good_ones() -> None:
    store = MemoryStore()
    first = CheckpointManager(store, keep=3, keep_best=0)
    for step in (1, 2, 3):
        save(first, step)
    for checkpoint_id in first.published()[:2]:
        flip(store, f"{checkpoint_id}/shard-0.safetensors")
    second = CheckpointManager(store, keep=2, keep_best=0)
    assert restored_step(second) == 1
    save(second, 4)
    assert [checkpoint_id.split("-")[1] for checkpoint_id in second.published()] == ["4", "1"]


def test_files_of_others_are_not_touched() -> None:
    store = MemoryStore()
    store.put("notes/manifest.json", b"mine")
    store.put("00000007-9/shard-0.safetensors", b"of a writer that was killed")
    manager = CheckpointManager(store, keep=1)
    manager.clean()
    assert store.list() == ["notes/manifest.json"]
    save(manager, 1)
    save(manager, 2)
    assert "notes/manifest.json" in store.list()
    assert len(manager.published()) == 1


def test_the_number_of_an_unpublished_checkpoint_is_not_reused() -> None:
    store = MemoryStore()
    store.put("00000007-9/shard-0.safetensors", b"of a writer that was killed")
    assert save(CheckpointManager(store), 10) == "00000008-10"


_KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from relaax.checkpoint import CheckpointManager, LocalStore

directory = Path(sys.argv[1])
EVENTS = ("open", "os.", "shutil.", "tempfile.")

def save(path, step):
    manager = CheckpointManager(LocalStore(path), keep=1, keep_best=0)
    manager.restore()
    manager.clean()
    manager.save(step, {"shard-0": {"parameters": np.full(100, step, np.float32)}}, {"counters": {"a": step}})

def child(path, kill_at):
    save(path, 1)
    seen = 0
    def hook(event, arguments):
        nonlocal seen
        if event.startswith(EVENTS):
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), 9)
    sys.addaudithook(hook)
    save(path, 2)
    os._exit(0)

kill_at = 0
while True:
    kill_at += 1
    pid = os.fork()
    if pid == 0:
        child(directory / str(kill_at), kill_at)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
print(kill_at)
"""


def test_killed_at_any_file_operation_restore_succeeds(tmp_path: Path) -> None:
    # The second save deletes the first checkpoint, so that deletions are interrupted too.
    answer = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert answer.returncode == 0, answer.stderr
    kills = int(answer.stdout)
    steps = []
    for kill_at in range(1, kills + 1):
        store = LocalStore(tmp_path / str(kill_at))
        manager = CheckpointManager(store, keep=1, keep_best=0)
        steps.append(restored_step(manager))
        manager.clean()
        save(manager, 3)
        assert restored_step(manager) == 3
        assert len(store.list()) == 2, "a killed save leaves no files"
    assert kills > 15
    assert steps == sorted(steps)
    assert set(steps) == {1, 2}
