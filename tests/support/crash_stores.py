"""Stores and managers with one mistake each, which the tests of crash consistency must find."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaax.checkpoint import Arrays, Checkpoint, CheckpointManager, LocalStore, Value
from relaax.checkpoint.array_file import to_buffers
from relaax.checkpoint.checkpoint import describe_part
from relaax.checkpoint.manifest import part_key
from relaax.checkpoint.store import buffers_of


class InPlace(LocalStore):
    """A store that overwrites files in place."""

    def put(self, key: str, value: Value) -> None:
        target = self._path(key)
        self._make_directory(target.parent)
        _write(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), value, synced=True)
        _sync(target.parent)


class DataUnsynced(LocalStore):
    """A store that renames a file before its data is durable."""

    def put(self, key: str, value: Value) -> None:
        _put(self, key, value, data=False)


class NamesUnsynced(LocalStore):
    """A store that returns from `put` before the name of the file is durable."""

    def put(self, key: str, value: Value) -> None:
        _put(self, key, value, names=False)


class DirectoriesUnsynced(LocalStore):
    """A store that returns from `put` before the name of a new directory is durable."""

    def _make_directory(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)


class DirectoriesOfOthersUnsynced(LocalStore):
    """A store that assumes existing directories to be durable. Their creator may have been killed before syncing."""

    def _make_directory(self, directory: Path) -> None:
        self._safe.extend([directory, *directory.parents])
        super()._make_directory(directory)


class DeletesUnsynced(LocalStore):
    """A store that does not sync deletions, so that a deleted file may reappear."""

    def delete(self, key: str) -> None:
        path = self._path(key)
        path.unlink(missing_ok=True)
        if not list(path.parent.iterdir()):
            path.parent.rmdir()


class Untidy(LocalStore):
    """A store that does not delete files of killed writers."""

    def clean(self) -> None:
        pass


class ManifestFirst(CheckpointManager):
    """A manager that publishes a checkpoint before its parts are written."""

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        checkpoint_id = self.begin_checkpoint(global_step)
        described = {
            name: describe_part(part_key(checkpoint_id, name), to_buffers(arrays)) for name, arrays in parts.items()
        }
        full = self.publish(checkpoint_id, global_step, described, manifest)
        for name, arrays in parts.items():
            self.write_part(checkpoint_id, name, arrays)
        return Checkpoint(checkpoint_id, parts, full)


class PartsGoFirst(CheckpointManager):
    """A manager that deletes the parts of a checkpoint before its manifest."""

    def _delete_leftovers(self) -> None:
        for key in sorted(self._leftovers, key=lambda key: key.endswith("/manifest.json")):
            self.store.delete(key)
        self._leftovers.clear()


class OldGoFirst(CheckpointManager):
    """A manager that deletes the previous checkpoints before the new one is published."""

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        for checkpoint_id in self.published():
            self._leftovers.update(self.store.list(f"{checkpoint_id}/"))
        self._delete_leftovers()
        return super().save(global_step, parts, manifest)


_FLAWED = (
    InPlace,
    DataUnsynced,
    NamesUnsynced,
    DirectoriesUnsynced,
    DirectoriesOfOthersUnsynced,
    DeletesUnsynced,
    Untidy,
)
_FLAWED_MANAGERS = (ManifestFirst, PartsGoFirst, OldGoFirst)
FLAWS = [flawed.__name__ for flawed in (*_FLAWED, *_FLAWED_MANAGERS)]

STORES: dict[str, type[LocalStore]] = {"": LocalStore, **{store.__name__: store for store in _FLAWED}}
STORES.update({manager.__name__: LocalStore for manager in _FLAWED_MANAGERS})
MANAGERS: dict[str, type[CheckpointManager]] = dict.fromkeys(STORES, CheckpointManager)
MANAGERS.update({manager.__name__: manager for manager in _FLAWED_MANAGERS})


def _put(store: LocalStore, key: str, value: Value, data: bool = True, names: bool = True) -> None:
    target = store._path(key)
    store._make_directory(target.parent)
    descriptor, name = tempfile.mkstemp(prefix=".unfinished-", dir=target.parent)
    _write(descriptor, value, data)
    os.replace(name, target)
    if names:
        _sync(target.parent)


def _write(descriptor: int, value: Value, synced: bool) -> None:
    for buffer in buffers_of(value):
        os.write(descriptor, buffer)
    if synced:
        os.fsync(descriptor)
    os.close(descriptor)


def _sync(directory: os.PathLike[str]) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
