"""A recorder of the file-system operations of a process below a folder. It can kill the process at one of them."""

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
_ACCESSOR: Any = getattr(pathlib, "_NormalAccessor", None)  # Python 3.10 has copies of the functions of `os` there
_real: dict[str, Callable[..., Any]] = {
    name: getattr(os, name)
    for name in ("open", "write", *_PATHS, *_PAIRS, *_DESCRIPTORS, *_UNKNOWN)
    if hasattr(os, name)
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A successful operation. `path` is relative to the folder, `data` is hexadecimal.

    An entry of kind `note` is not an operation: its `path` is a label of the progress of the process.
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
    """Return the operations of a log. The process may have been killed."""
    return [Operation(**json.loads(line)) for line in log.read_text().splitlines()]


class Recorder:
    """A permanent patch of `os` in this process. Successful operations below `folder` are written to `log`.

    The process is killed at operation number `at`, counted from 1: before it, after it, or in the middle of a write.
    Files are not really synced, because a killed process loses no written data. The effects of a power failure are
    computed from the log: see `support.crash_disk`.
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
            self._patch(name, self._forbid(name))
        self._patch("open", self._on_open)
        self._patch("write", self._on_write)
        builtins.open = io.open = self._read_only(io.open)
        if _ACCESSOR is not None:
            _ACCESSOR.open = staticmethod(io.open)

    def note(self, text: str) -> None:
        """Write a label of the progress to the log."""
        self._put(Operation("note", text))

    def _patch(self, name: str, function: Callable[..., Any]) -> None:
        if name not in _real:
            return
        setattr(os, name, function)
        if name in (*_PATHS, *_PAIRS) and hasattr(_ACCESSOR, name):
            setattr(_ACCESSOR, name, staticmethod(function))

    def _relative(self, path: Any) -> str | None:
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
            relative = self._relative(path)
            if relative is None:
                return _real[name](path, *rest, **options)
            kind = "unlink" if name == "remove" else name
            return self._do(Operation(kind, relative), lambda: _real[name](path, *rest, **options))

        return call

    def _on_pair(self, name: str) -> Callable[..., Any]:
        def call(source: Any, target: Any, **options: Any) -> Any:
            one, other = self._relative(source), self._relative(target)
            if one is None and other is None:
                return _real[name](source, target, **options)
            assert one is not None, f"{name} of {source} is outside of the folder"
            assert other is not None, f"{name} to {target} is outside of the folder"
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
        relative = self._relative(path)
        if relative is None:
            other = int(_real["open"](path, flags, mode, **options))
            self._open.pop(other, None)  # a file object may have closed the previous file with this descriptor
            return other
        descriptor: int = self._do(
            Operation("open", relative, flags=flags), lambda: _real["open"](path, flags, mode, **options)
        )
        self._open[descriptor] = relative
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

    def _forbid(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            raise AssertionError(f"os.{name} is not supported by the recorder: add it")

        return call

    def _read_only(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if set(mode) & set("wax+") and self._relative(file) is not None:
                raise AssertionError(f"{file} is opened for writing in a way that the recorder does not support")
            return real(file, mode, *rest, **options)

        return call


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
