"""A scene in which saving a checkpoint is interrupted at any of its operations, and the result is examined."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from relaax.checkpoint import CheckpointManager, Damaged, LocalStore
from relaax.cli.checkpoints.catalogue import entries
from support.crash_child import KEEP, KEEP_BEST, PARTS, CheckpointSaver, Request, state
from support.crash_disk import Disk, Tree, make, tree_of
from support.crash_recorder import AFTER, BEFORE, MIDDLE, Operation, recorded

NEW, NEXT = 40, 50
_EARLIER = (10, 20, 30)
_FILES = {"manifest.json", *(f"{part}.safetensors" for part in PARTS)}


class Scene:
    """A folder with a directory of three checkpoints, `checkpoints`. If `first`, the directory does not exist yet.

    `operations`: the recorded operations of a save of the next checkpoint that is not interrupted.
    """

    def __init__(self, saver: CheckpointSaver, folder: Path, flaw: str = "", first: bool = False) -> None:
        self._saver, self._folder, self._flaw = saver, folder, flaw
        self._count = 0
        self._before = folder / "before"
        self._before.mkdir()
        for step in () if first else _EARLIER:
            assert self._save(self._before, step)[0] == 0
        self._known = {manifest["id"]: manifest for manifest in self._manifests(self._before)}
        self.previous = None if first else _EARLIER[-1]
        reference = self._copy()
        code, self.operations = self._save(reference, NEW, self._flaw)
        assert code == 0
        self.replayed = self._replay(self.operations).visible() == tree_of(reference)
        self.published = max(
            index
            for index, operation in enumerate(self.operations)
            if operation.kind in ("rename", "write") and (operation.target or operation.path).endswith("/manifest.json")
        )
        self.saved = self.operations.index(Operation("note", "saved"))

    @property
    def count(self) -> int:
        """The number of operations of a save."""
        return max(operation.number for operation in self.operations)

    def points(self) -> Iterator[tuple[int, str]]:
        """Yield the number of every operation with each moment for a kill: before it, after it, or during a write."""
        writes = {operation.number for operation in self.operations if operation.kind == "write"}
        for number in range(1, self.count + 1):
            yield number, BEFORE
            if number in writes:
                yield number, MIDDLE
            yield number, AFTER

    def changes(self) -> list[tuple[int, str]]:
        """Return the moments after which the visible contents have changed."""
        changing = {
            operation.number
            for operation in self.operations
            if operation.kind not in ("fsync", "close") and (operation.kind != "open" or operation.flags & os.O_CREAT)
        }
        return [point for point in self.points() if point[0] in changing and point[1] != BEFORE]

    def kill(self, number: int, when: str, restart: bool = True) -> Iterator[str]:
        """Yield the errors after a kill at this moment, and after a restart that follows it."""
        where = f"killed {when} operation {number}"
        folder = self._copy()
        code, first = self._save(folder, NEW, self._flaw, number, when)
        if code != -9:
            yield f"{where}: ended with {code}"
            return
        done = max((operation.number for operation in first), default=0)
        published = self.operations[self.published].number
        required = NEW if done >= published else self.previous
        yield from self._examine(folder, where, {required})
        if restart:
            yield from self._restart(folder, where, first)
        shutil.rmtree(folder)

    def lose_power(self, since: int = 0) -> Iterator[str]:
        """Yield the errors for a power failure after any operation, with any loss of data that is not durable.

        `since`: the index of the first operation to try.
        """
        disk = Disk(self._before)
        seen: set[tuple[str, frozenset[int | None]]] = set()
        for index, operation in enumerate(self.operations):
            disk.apply(operation)
            if index < since:
                continue
            allowed = frozenset({self.previous} if index < self.published else {self.previous, NEW})
            if index >= self.saved:
                allowed = frozenset({NEW})
            for tree in disk.states():
                if (key := (_digest(tree), allowed)) not in seen:
                    seen.add(key)
                    yield from self._examine_tree(tree, f"power failure after {operation}", allowed)
        self.states = len(seen)

    def _restart(self, folder: Path, where: str, first: list[Operation]) -> Iterator[str]:
        where = f"{where}, then restarted"
        code, second = self._save(folder, NEXT, self._flaw)
        assert code == 0
        yield from self._examine(folder, where, {NEXT}, tidy=True)
        disk = self._replay([*first, *second[: second.index(Operation("note", "saved")) + 1]])
        for tree in _distinct(disk.states()):
            yield from self._examine_tree(tree, f"{where}, then a power failure", {NEXT})

    def _save(
        self, folder: Path, step: int, flaw: str = "", at: int = 0, when: str = BEFORE
    ) -> tuple[int, list[Operation]]:
        self._count += 1
        log = self._folder / f"{self._count}.log"
        directory = folder / "checkpoints"
        code = self._saver.save(Request(str(directory), str(folder), str(log), step, at, when, flaw))
        return code, recorded(log)

    def _copy(self) -> Path:
        self._count += 1
        return Path(shutil.copytree(self._before, self._folder / f"copy-{self._count}"))

    def _replay(self, operations: list[Operation]) -> Disk:
        disk = Disk(self._before)
        for operation in operations:
            disk.apply(operation)
        return disk

    def _manifests(self, folder: Path) -> Iterator[dict[str, Any]]:
        manager = CheckpointManager(LocalStore(folder / "checkpoints"))
        for checkpoint_id in manager.published():
            yield manager.manifest(checkpoint_id)

    def _examine_tree(self, tree: Tree, where: str, allowed: set[int | None] | frozenset[int | None]) -> Iterator[str]:
        folder = self._folder / "after"
        make(tree, folder)
        yield from self._examine(folder, where, allowed)
        shutil.rmtree(folder)

    def _examine(
        self, folder: Path, where: str, allowed: set[int | None] | frozenset[int | None], tidy: bool = False
    ) -> Iterator[str]:
        """Yield the errors of a folder.

        Restore must return a checkpoint of a step in `allowed`, byte for byte. No published checkpoint may be damaged.
        `tidy`: no other files may exist.
        """
        directory = folder / "checkpoints"
        store = LocalStore(directory)
        manager = CheckpointManager(store, KEEP, KEEP_BEST)
        for checkpoint_id in manager.published():
            try:
                manager.load(checkpoint_id)
            except Damaged as damage:
                yield f"{where}: published checkpoint {checkpoint_id} is damaged: {damage}"
        for entry in entries(store):
            if entry.damaged is not None:
                yield f"{where}: {entry.checkpoint_id} is listed as damaged: {entry.damaged}"
        restored = manager.restore()
        step = None if restored is None else restored.manifest["global_step"]
        if step not in allowed:
            yield f"{where}: step {step} is restored, not one of {sorted(allowed, key=str)}"
        elif restored is not None and not self._is_whole(restored.parts, restored.manifest):
            yield f"{where}: the restored checkpoint of step {step} differs from the saved one"
        if tidy:
            left = tree_of(directory).keys() - {"lease.json", ".lock"}
            for checkpoint_id in manager.published():
                left -= {checkpoint_id, *(f"{checkpoint_id}/{name}" for name in _FILES)}
            if left:
                yield f"{where}: {', '.join(sorted(left))} was not deleted"

    def _is_whole(self, parts: Mapping[str, Any], manifest: Mapping[str, Any]) -> bool:
        expected, described = state(manifest["global_step"])
        known = self._known.get(manifest["id"])
        if known is not None and known != manifest:
            return False
        return (
            _bytes(parts) == _bytes(expected)
            and all(manifest[key] == json.loads(json.dumps(value)) for key, value in described.items())
            and manifest["id"].split("-")[1] == str(manifest["global_step"])
            and manifest["id"].endswith(f"-f{manifest['fence']}")
        )


def _bytes(parts: Mapping[str, Any]) -> dict[str, dict[str, tuple[str, tuple[int, ...], bytes]]]:
    return {
        name: {key: (str(array.dtype), array.shape, array.tobytes()) for key, array in sorted(arrays.items())}
        for name, arrays in parts.items()
    }


def _digest(tree: Tree) -> str:
    return hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest()


def _distinct(trees: Iterator[Tree]) -> Iterator[Tree]:
    seen: set[str] = set()
    for tree in trees:
        if (digest := _digest(tree)) not in seen:
            seen.add(digest)
            yield tree


def kinds(operations: list[Operation]) -> dict[str, int]:
    """Return the number of operations of each kind."""
    names = [operation.kind for operation in operations if operation.kind != "note"]
    return {name: names.count(name) for name in sorted(set(names))}
