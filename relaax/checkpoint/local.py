"""Checkpoints in a local directory."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from relaax.checkpoint.store import NotFound, Store, StoreError, check_key

_UNFINISHED = ".unfinished-"


class LocalStore(Store):
    """Files below `directory`, which is made when the first value is put.

    A value is written aside, synced, renamed into place, and the rename is synced too.
    """

    def __init__(self, directory: Path | str) -> None:
        self._root = Path(directory)

    @property
    def location(self) -> str:
        return str(self._root)

    def put(self, key: str, value: bytes) -> None:
        target = self._path(key)
        with self._errors("write", target):
            self._make_directory(target.parent)
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=target.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(value)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            _sync_directory(target.parent)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._errors("read", path):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(f"{path} is not there") from None

    def list(self, prefix: str = "") -> list[str]:
        with self._errors("list", self._root):
            return sorted(key for key in self._keys() if key.startswith(prefix))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors("delete", path):
            path.unlink(missing_ok=True)
            if path.parent != self._root:
                with contextlib.suppress(OSError):  # not empty yet, or gone already
                    path.parent.rmdir()

    def clean(self) -> None:
        with self._errors("clean", self._root):
            for path in list(self._root.rglob(f"{_UNFINISHED}*")):
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    path.parent.rmdir()

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _keys(self) -> Iterator[str]:
        for folder, _, names in os.walk(self._root, onerror=_raise_unless_missing):
            for name in names:
                if not name.startswith(_UNFINISHED):
                    yield (Path(folder) / name).relative_to(self._root).as_posix()

    def _make_directory(self, directory: Path) -> None:
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        for path in missing:
            _sync_directory(path.parent)

    @contextlib.contextmanager
    def _errors(self, verb: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot {verb} {path}: {error.strerror or error}") from error


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
