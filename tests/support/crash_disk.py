"""What a disk may hold after the power has failed, told from the operations of a process.

The rules are the weakest that POSIX allows. Data is safe once the file was synced, a name once its directory was.
Everything else may be there or not, in any order; of a write also its first half. What the file system does in one
step, as a rename, is done or not.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.crash_recorder import Operation

Tree = dict[str, bytes | None]
"""Files by path, and directories, which hold None."""

_ALL_SUBSETS = 6  # of so many pending steps all subsets are tried, of more the telling ones and some by chance
_BY_CHANCE = 16


@dataclass(frozen=True, slots=True)
class _Step:
    """One that is not safe yet: names of a directory that change together, or bytes of a file."""

    node: int
    names: tuple[tuple[str, int | None], ...] = ()
    at: int = 0
    data: bytes = b""
    empties: bool = False


@dataclass(slots=True)
class _Node:
    names: dict[str, int] | None  # of a directory
    data: bytes = b""
    end: int = 0  # where the next write goes
    children: dict[str, int] = field(default_factory=dict)  # the names as the process sees them


class Disk:
    """Begins as the folder is, all of it safe."""

    def __init__(self, folder: Path) -> None:
        self._nodes: list[_Node] = []
        self._pending: list[_Step] = []
        self._open: dict[int, int] = {}
        self._root = self._load(folder)

    def apply(self, operation: Operation) -> None:
        """One more operation. What a new process has open is told by its own `open`s."""
        kind = operation.kind
        if kind == "open":
            self._open[operation.descriptor] = self._opened(operation)
        elif kind == "write":
            node = self._open[operation.descriptor]
            self._write(node, bytes.fromhex(operation.data))
        elif kind == "fsync":
            self._sync(self._open[operation.descriptor])
        elif kind == "mkdir":
            self._nodes.append(_Node({}))
            self._name(operation.path, len(self._nodes) - 1)
        elif kind in ("unlink", "rmdir"):
            self._name(operation.path, None)
        elif kind in ("rename", "link"):
            self._moved(operation)
        else:
            assert kind in ("close", "note"), f"the disk does not know {operation}"

    def seen(self) -> Tree:
        """What the processes see while there is power."""
        return self._tree(self._pending)

    def states(self) -> Iterator[Tree]:
        """What may be there if the power fails now: first that nothing is that was not made safe."""
        pending = self._halved()
        count = len(pending)
        if count <= _ALL_SUBSETS:
            chosen: Iterator[Sequence[bool]] = iter(itertools.product((False, True), repeat=count))
        else:
            chosen = _telling(count)
        for choice in chosen:
            yield self._tree(list(itertools.compress(pending, choice)))

    def _load(self, path: Path) -> int:
        node = _Node({} if path.is_dir() else None, b"" if path.is_dir() else path.read_bytes())
        self._nodes.append(node)
        number = len(self._nodes) - 1
        if node.names is not None:
            for child in sorted(path.iterdir()):
                node.names[child.name] = self._load(child)
            node.children = dict(node.names)
        return number

    def _at(self, path: str) -> int:
        number = self._root
        for name in Path(path).parts:
            number = self._nodes[number].children[name]
        return number

    def _name(self, path: str, node: int | None) -> None:
        self._change(os.path.dirname(path), ((os.path.basename(path), node),))

    def _change(self, directory: str, names: tuple[tuple[str, int | None], ...]) -> None:
        number = self._at(directory)
        _rename(self._nodes[number].children, names)
        self._pending.append(_Step(number, names))

    def _moved(self, operation: Operation) -> None:
        directory = os.path.dirname(operation.path)
        assert os.path.dirname(operation.target) == directory, f"{operation} is between directories"
        names: list[tuple[str, int | None]] = [(os.path.basename(operation.target), self._at(operation.path))]
        if operation.kind == "rename":
            names.append((os.path.basename(operation.path), None))
        self._change(directory, tuple(names))

    def _opened(self, operation: Operation) -> int:
        parent = self._nodes[self._at(os.path.dirname(operation.path))]
        if operation.path != "." and os.path.basename(operation.path) not in parent.children:
            self._nodes.append(_Node(None))
            self._name(operation.path, len(self._nodes) - 1)
        number = self._at(operation.path)
        self._nodes[number].end = 0
        if operation.flags & os.O_TRUNC:
            self._pending.append(_Step(number, empties=True))
        return number

    def _write(self, number: int, data: bytes) -> None:
        node = self._nodes[number]
        self._pending.append(_Step(number, at=node.end, data=data))
        node.end += len(data)

    def _sync(self, number: int) -> None:
        node = self._nodes[number]
        for step in self._pending:
            if step.node == number:
                if node.names is not None:
                    _rename(node.names, step.names)
                else:
                    node.data = _written(node.data, step)
        self._pending = [step for step in self._pending if step.node != number]

    def _halved(self) -> list[_Step]:
        steps = []
        for step in self._pending:
            half = len(step.data) // 2
            if half:
                steps.append(_Step(step.node, at=step.at, data=step.data[:half]))
                step = _Step(step.node, at=step.at + half, data=step.data[half:])
            steps.append(step)
        return steps

    def _tree(self, steps: Sequence[_Step]) -> Tree:
        names = {number: dict(node.names) for number, node in enumerate(self._nodes) if node.names is not None}
        data: dict[int, bytes] = {}
        for step in steps:
            if step.node in names:
                _rename(names[step.node], step.names)
            else:
                data[step.node] = _written(data.get(step.node, self._nodes[step.node].data), step)
        tree: Tree = {}
        self._walk("", self._root, names, data, tree)
        return tree

    def _walk(
        self, path: str, number: int, names: dict[int, dict[str, int]], data: dict[int, bytes], tree: Tree
    ) -> None:
        for name, child in names[number].items():
            below = os.path.join(path, name)
            if child in names:
                tree[below] = None
                self._walk(below, child, names, data, tree)
            else:
                tree[below] = data.get(child, self._nodes[child].data)


def tree_of(folder: Path) -> Tree:
    """What there is."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")
    }


def make(tree: Tree, folder: Path) -> None:
    """A new folder that holds it."""
    folder.mkdir(parents=True)
    for path, data in sorted(tree.items()):
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def _telling(count: int) -> Iterator[Sequence[bool]]:
    for happened in range(count + 1):  # in order, up to some moment
        yield [index < happened for index in range(count)]
    for one in range(count):
        yield [index == one for index in range(count)]
        yield [index != one for index in range(count)]
    chance = random.Random(count)
    for _ in range(_BY_CHANCE):
        yield [chance.random() < 0.5 for _ in range(count)]


def _rename(names: dict[str, int], changes: tuple[tuple[str, int | None], ...]) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _written(data: bytes, step: _Step) -> bytes:
    if step.empties:
        return b""
    if not step.data:
        return data
    return data[: step.at].ljust(step.at, b"\0") + step.data + data[step.at + len(step.data) :]
