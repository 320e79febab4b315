"""A model of a disk: its possible states after a power failure, computed from the operations of a process.

The guarantees are the weakest that POSIX allows. Data is durable after fsync of the file, and a name after fsync of its
directory. Any subset of the other operations may be lost, and also the second half of a write. An operation that the
file system does in one step, such as a rename, is never lost in part.
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
"""Contents of files by path. The value of a directory is None."""

_ALL_SUBSETS = (
    6  # up to this many pending steps, all subsets are tried; beyond it, prefixes, single steps and random subsets
)
_RANDOM_SUBSETS = 16


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that is not durable yet: names of a directory that change together, or bytes of a file."""

    node: int
    names: tuple[tuple[str, int | None], ...] = ()
    at: int = 0
    data: bytes = b""
    empties: bool = False


@dataclass(slots=True)
class _Node:
    names: dict[str, int] | None  # durable names of a directory; None for a file
    data: bytes = b""
    end: int = 0  # where the next write goes
    children: dict[str, int] = field(default_factory=dict)  # names of a directory, with changes that are not durable


class Disk:
    """A model of a disk that initially has the contents of a folder, all durable."""

    def __init__(self, folder: Path) -> None:
        self._nodes: list[_Node] = []
        self._pending: list[_Step] = []
        self._open: dict[int, int] = {}
        self._root = self._load(folder)

    def apply(self, operation: Operation) -> None:
        """Apply an operation. A later process may reuse the descriptor numbers of an earlier one."""
        kind = operation.kind
        if kind == "open":
            self._open[operation.descriptor] = self._open_node(operation)
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
            self._move(operation)
        else:
            assert kind in ("close", "note"), f"operation {operation} is not supported"

    def visible(self) -> Tree:
        """Return the contents that processes see before a power failure."""
        return self._tree(self._pending)

    def states(self) -> Iterator[Tree]:
        """Yield possible contents after a power failure at this moment. In the first, all pending steps are lost."""
        pending = self._halved()
        count = len(pending)
        if count <= _ALL_SUBSETS:
            chosen: Iterator[Sequence[bool]] = iter(itertools.product((False, True), repeat=count))
        else:
            chosen = _subsets(count)
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

    def _move(self, operation: Operation) -> None:
        directory = os.path.dirname(operation.path)
        assert os.path.dirname(operation.target) == directory, f"{operation} crosses directories"
        names: list[tuple[str, int | None]] = [(os.path.basename(operation.target), self._at(operation.path))]
        if operation.kind == "rename":
            names.append((os.path.basename(operation.path), None))
        self._change(directory, tuple(names))

    def _open_node(self, operation: Operation) -> int:
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
    """Return the contents of a folder."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")
    }


def make(tree: Tree, folder: Path) -> None:
    """Create a folder with these contents."""
    folder.mkdir(parents=True)
    for path, data in sorted(tree.items()):
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def _subsets(count: int) -> Iterator[Sequence[bool]]:
    for happened in range(count + 1):  # the first steps, in their order
        yield [index < happened for index in range(count)]
    for one in range(count):
        yield [index == one for index in range(count)]
        yield [index != one for index in range(count)]
    chance = random.Random(count)
    for _ in range(_RANDOM_SUBSETS):
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
