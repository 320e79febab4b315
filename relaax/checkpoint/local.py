"""A store of checkpoints in a local directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import re
import stat
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from relaax.checkpoint.store import (
    MAX_VALUE_BYTES,
    PIECE_BYTES,
    InvalidValue,
    NotFound,
    Store,
    StoreError,
    Value,
    buffers_of,
    check_key,
    check_value_size,
    conflict,
    is_key,
)

_UNFINISHED = ".unfinished-"
_LOCK = ".lock"
_LOCK_SECONDS = 10.0  # held for one short write; only a stopped process holds it longer
_NUMBERED = re.compile(r"\d+-")  # names of checkpoint directories; other directories are not ours
BUSY = (errno.EAGAIN, errno.EACCES)
"""Errors of `flock` if another process holds the lock. Other errors: the file system has no locks."""
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_VALUE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a link, a socket or a pipe, a folder


class LocalStore(Store):
    """Files below `directory`, which is created with the first value.

    A value is written to a temporary file, synced and renamed into place; then the rename is synced. A deletion is
    synced too, so that deletions become durable in order. A conditional write checks and writes under a lock (`flock`)
    that all processes on all machines share.

    Values are regular files in real folders. `directory` itself may be a link. Links below it are not followed, and
    special files are not opened.
    """

    def __init__(self, directory: Path | str) -> None:
        self._root = Path(directory)
        self._safe: deque[Path] = deque(maxlen=8)  # the last directories whose names are known to be durable

    @property
    def location(self) -> str:
        return str(self._root)

    def put(self, key: str, value: Value) -> None:
        target = self._path(key)
        with self._errors("write", target):
            self._make_directory(target.parent)
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=target.parent)
            try:
                with os.fdopen(descriptor, "wb", buffering=0) as file:
                    for buffer in buffers_of(value):
                        _write(file.fileno(), buffer)
                    os.fsync(file.fileno())
                os.replace(name, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            _sync_directory(target.parent)

    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        path = self._path(key)
        with self._errors("write", path):
            self._make_directory(self._root)
        with self._locked():
            try:
                found = self.get_with_tag(key)[1]
            except NotFound:
                found = None
            if found != tag:
                raise conflict(str(path), tag)
            self.put(key, value)
        return _tag(value)

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._opened(path) as (descriptor, size):
            check_value_size(str(path), size, MAX_VALUE_BYTES)
            return b"".join(self._read(descriptor, path, size))

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        value = self.get(key)
        return value, _tag(value)

    def size(self, key: str) -> int:
        with self._opened(self._path(key)) as (_, size):
            return size

    def pieces(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        return self._pieces(path)

    def list(self, prefix: str = "") -> list[str]:
        with self._errors("list", self._root):
            return sorted(key for key in self._keys() if key.startswith(prefix))

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors("delete", path):
            path.unlink(missing_ok=True)
            folder = path.parent
            if folder != self._root and _removed(folder):
                folder = folder.parent
            with contextlib.suppress(FileNotFoundError):
                _sync_directory(folder)

    def clean(self) -> None:
        if not self._root.is_dir():
            return
        with self._locked(), self._errors("clean", self._root):  # another process may be renewing its lease
            for folder, folders, names in os.walk(self._root, onerror=_raise_unless_missing):
                for name in [*folders, *names]:
                    if name.startswith(_UNFINISHED) and not os.path.isdir(os.path.join(folder, name)):
                        Path(folder, name).unlink(missing_ok=True)
                        _removed(Path(folder))
            for numbered in list(self._root.iterdir()):
                if _NUMBERED.match(numbered.name):
                    _removed(numbered)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _keys(self) -> Iterator[str]:
        for folder, folders, names in os.walk(self._root, onerror=_raise_unless_missing):
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            for name in [*names, *links]:
                key = (Path(folder) / name).relative_to(self._root).as_posix()
                if is_key(key):  # names with a leading dot: unfinished files, the lock, or files of others
                    yield key

    def _pieces(self, path: Path) -> Iterator[bytes]:
        with self._opened(path) as (descriptor, _):
            yield from self._read(descriptor, path)

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[tuple[int, int]]:
        """Open the regular file at `path`. Return its descriptor and length. Raises NotFound and InvalidValue."""
        *folders, name = path.relative_to(self._root).parts
        with self._errors("read", path), contextlib.ExitStack() as closing:
            try:
                folder = _opened(closing, self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                for part in folders:
                    folder = _opened(closing, part, _FOLDER, folder)
                # Check before opening: opening a device may have effects.
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    descriptor = _opened(closing, name, _READ, folder)
                    found = os.fstat(descriptor)
            except (FileNotFoundError, NotADirectoryError):
                if any((self._root / Path(*folders[: end + 1])).is_symlink() for end in range(len(folders))):
                    raise InvalidValue(f"cannot read {path}: its path contains a link") from None
                raise NotFound(f"no such file in the store: {path}") from None
            except OSError as error:
                if error.errno in _NO_VALUE:
                    raise _not_regular("read", path) from None
                raise
            if not stat.S_ISREG(found.st_mode):
                raise _not_regular("read", path)
            yield descriptor, found.st_size

    def _read(self, descriptor: int, path: Path, length: int | None = None) -> Iterator[bytes]:
        """Yield the content of the file: `length` bytes, or all."""
        with self._errors("read", path):
            left = length
            while piece := os.read(descriptor, PIECE_BYTES if left is None else min(left, PIECE_BYTES)):
                left = None if left is None else left - len(piece)
                yield piece

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        path = self._root / _LOCK
        with self._errors("lock", path):
            descriptor = self._lock_file(path)
        try:
            deadline = time.monotonic() + _LOCK_SECONDS
            while not self._try_lock(descriptor, path):
                if time.monotonic() > deadline:
                    raise StoreError(f"cannot lock {path}: another process has held it for {_LOCK_SECONDS:g} s")
                time.sleep(0.02)
            yield
        finally:
            os.close(descriptor)

    def _lock_file(self, path: Path) -> int:
        """Open the lock file, and create it if necessary. Links are not followed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno in _NO_VALUE:
                raise _not_regular("lock", path) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise _not_regular("lock", path)
        return descriptor

    def _try_lock(self, descriptor: int, path: Path) -> bool:
        with self._errors("lock", path):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in BUSY:
                    return False
                raise StoreError(
                    f"cannot lock {path}: its file system has no file locks ({error.strerror}): mount it with "
                    "locks, such as NFS with its lock service, or keep checkpoints elsewhere"
                ) from None
        return True

    def _make_directory(self, directory: Path) -> None:
        if directory != self._root and directory.is_symlink():
            raise InvalidValue(f"cannot write to {directory}: it is a link, which may point anywhere; remove it")
        missing = list(itertools.takewhile(lambda path: not path.exists(), (directory, *directory.parents)))
        there = missing[-1].parent if missing else directory
        if there not in self._safe:
            # A killed process may have created the directory without syncing its parent. If this process may not open
            # the parent, it did not create the directory.
            with contextlib.suppress(OSError):
                _sync_directory(there.parent)
            self._safe.append(there)
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            _sync_directory(path.parent)
            self._safe.append(path)

    @contextlib.contextmanager
    def _errors(self, verb: str, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"cannot {verb} {path}: {error.strerror or error}") from error


def _opened(closing: contextlib.ExitStack, path: Path | str, flags: int, folder: int | None = None) -> int:
    """Open a descriptor that `closing` closes."""
    descriptor = os.open(path, flags, dir_fd=folder)
    closing.callback(os.close, descriptor)
    return descriptor


def _not_regular(verb: str, path: Path) -> InvalidValue:
    return InvalidValue(f"cannot {verb} {path}: it is not a regular file; remove it")


def _write(descriptor: int, buffer: memoryview) -> None:
    while buffer.nbytes:
        buffer = buffer[os.write(descriptor, buffer) :]


def _removed(directory: Path) -> bool:
    """Remove a folder if it is empty. Return whether it was removed."""
    try:
        directory.rmdir()
    except OSError:
        return False
    return True


def _tag(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
