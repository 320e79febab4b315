"""Every file-system operation of a process below a folder is written down, and the process is killed at one of them."""

from __future__ import annotations

import builtins
import io
import json
import os
import pathlib
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

BEFORE, MIDDLE, AFTER = "before", "middle", "after"

_PATHS = ("mkdir", "rmdir", "unlink", "remove", "truncate")
_PAIRS = ("rename", "replace", "link", "symlink")
_DESCRIPTORS = ("fsync", "fdatasync", "close", "ftruncate")
_UNKNOWN = ("pwrite", "writev", "pwritev", "sendfile", "copy_file_range", "posix_fallocate", "splice")
_ACCESSOR: Any = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 keeps the functions of `os` there
_real: dict[str, Callable[..., Any]] = {
    name: getattr(os, name)
    for name in ("open", "write", *_PATHS, *_PAIRS, *_DESCRIPTORS, *_UNKNOWN)
    if hasattr(os, name)
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One that succeeded. `path` is relative to the folder; `descriptor` is that of the process; `data` is hexadecimal.

    A `note` is none: it says in `path` how far the process had come.
    """

    kind: str
    path: str = ""
    target: str = ""
    descriptor: int = -1
    data: str = ""
    flags: int = 0
    number: int = 0

    def __str__(self) -> str:
        return f"operation {self.number}: {self.kind} {self.path}" + (f" -> {self.target}" if self.target else "")


def recorded(log: Path) -> list[Operation]:
    """What was written down, whether or not the process was killed."""
    return [Operation(**json.loads(line)) for line in log.read_text().splitlines()]


class Recorder:
    """Patches `os` in this process for good. What is below `folder` is written to `log` when it has succeeded.

    The process is killed at the operation with the number `at`, counted from 1: before it, after it, or, where it
    writes, when half is written. Nothing is really synced: a killed process loses nothing of what it wrote, and
    what a machine without power loses is told from the log.
    """

    def __init__(self, folder: Path, log: Path, at: int = 0, when: str = BEFORE) -> None:
        self._folder, self._at, self._when = os.path.abspath(folder), at, when
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._open: dict[int, str] = {}
        self._count = 0
        for name in _PATHS:
            self._patch(name, self._on_path(name))
        for name in _PAIRS:
            self._patch(name, self._on_pair(name))
        for name in _DESCRIPTORS:
            self._patch(name, self._on_descriptor(name))
        for name in _UNKNOWN:
            self._patch(name, self._refuse(name))
        self._patch("open", self._on_open)
        self._patch("write", self._on_write)
        builtins.open = io.open = self._only_reads(io.open)
        if _ACCESSOR is not None:
            _ACCESSOR.open = staticmethod(io.open)

    def note(self, text: str) -> None:
        """Write down how far the process has come."""
        self._put(Operation("note", text))

    def _patch(self, name: str, function: Callable[..., Any]) -> None:
        if name not in _real:
            return
        setattr(os, name, function)
        if name in (*_PATHS, *_PAIRS) and hasattr(_ACCESSOR, name):
            setattr(_ACCESSOR, name, staticmethod(function))

    def _below(self, path: Any) -> str | None:
        if isinstance(path, int):
            return None
        full = os.path.abspath(os.fsdecode(path))
        return os.path.relpath(full, self._folder) if (full + "/").startswith(self._folder + "/") else None

    def _do(self, operation: Operation, function: Callable[[], Any]) -> Any:
        self._count += 1
        if self._count == self._at and self._when == BEFORE:
            _die()
        try:
            result = function()
        except OSError:
            if self._count == self._at:
                _die()
            raise
        if operation.kind == "open":
            operation = Operation(operation.kind, operation.path, descriptor=result, flags=operation.flags)
        self._put(Operation(**{**asdict(operation), "number": self._count}))
        if self._count == self._at:
            _die()
        return result

    def _put(self, operation: Operation) -> None:
        _real["write"](self._log, json.dumps(asdict(operation)).encode() + b"\n")

    def _on_path(self, name: str) -> Callable[..., Any]:
        def call(path: Any, *rest: Any, **options: Any) -> Any:
            below = self._below(path)
            if below is None:
                return _real[name](path, *rest, **options)
            kind = "unlink" if name == "remove" else name
            return self._do(Operation(kind, below), lambda: _real[name](path, *rest, **options))

        return call

    def _on_pair(self, name: str) -> Callable[..., Any]:
        def call(source: Any, target: Any, **options: Any) -> Any:
            one, other = self._below(source), self._below(target)
            if one is None and other is None:
                return _real[name](source, target, **options)
            assert one is not None, f"{name} of {source}: out of the folder"
            assert other is not None, f"{name} to {target}: out of the folder"
            kind = "rename" if name == "replace" else name
            return self._do(Operation(kind, one, other), lambda: _real[name](source, target, **options))

        return call

    def _on_descriptor(self, name: str) -> Callable[..., Any]:
        def call(descriptor: Any, *rest: Any) -> Any:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            path = self._open.get(number)
            if name == "close":
                self._open.pop(number, None)
            if path is None:
                return _real[name](descriptor, *rest)
            if name in ("fsync", "fdatasync"):
                return self._do(Operation("fsync", path, descriptor=number), lambda: None)
            return self._do(Operation(name, path, descriptor=number), lambda: _real[name](descriptor, *rest))

        return call

    def _on_open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        below = self._below(path)
        if below is None:
            other = int(_real["open"](path, flags, mode, **options))
            self._open.pop(other, None)  # a file object may have closed what had this number
            return other
        descriptor: int = self._do(
            Operation("open", below, flags=flags), lambda: _real["open"](path, flags, mode, **options)
        )
        self._open[descriptor] = below
        return descriptor

    def _on_write(self, descriptor: int, data: Any) -> int:
        path = self._open.get(descriptor)
        if path is None:
            return int(_real["write"](descriptor, data))
        view = memoryview(data).cast("B")
        if self._count + 1 == self._at and self._when == MIDDLE:
            view = view[: view.nbytes // 2]
        operation = Operation("write", path, descriptor=descriptor, data=view.hex())
        return int(self._do(operation, lambda: _real["write"](descriptor, view)))

    def _refuse(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            raise AssertionError(f"os.{name} is not known to the recorder: add it")

        return call

    def _only_reads(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if set(mode) & set("wax+") and self._below(file) is not None:
                raise AssertionError(f"{file} is opened for writing in a way that is not known to the recorder")
            return real(file, mode, *rest, **options)

        return call


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
