"""Folders for temporary files of workers, which the server removes.

A worker exits without the interpreter's cleanup, perhaps by a signal, so it may leave files behind. So may a server
that is killed: the next one to start removes its folder. A folder is locked (flock) while its server, or a worker that
it forked, is alive; as no process ids are recorded, none can be stale.

Nothing here raises: clients are served even if no folder can be written.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)

PREFIX = "relaax-rlx-workers-"
"""Every version that uses this prefix locks its folders while they are in use."""
_ATTEMPTS = 4
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkerFolders:
    """The server's folder, created for the first worker, with a subfolder named by each worker's process id."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1
        self._warned = False

    def made(self) -> Path | None:
        """Return the folder, created if missing; None if it cannot be created, which is logged once."""
        try:
            if self._path is None or not self._path.is_dir():
                self._unlock()
                self._path, self._lock = _locked_folder()
        except OSError as error:
            self._path = None
            if not self._warned:
                _log.warning("no folder for the workers' temporary files: %s", error)
            self._warned = True
        return self._path

    def remove(self, pid: int) -> None:
        """Remove the subfolder of a worker that has ended."""
        if self._path is not None:
            shutil.rmtree(self._path / str(pid), ignore_errors=True)

    def close(self) -> None:
        """Remove the folder, as all workers have ended."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked_folder() -> tuple[Path, int]:
    """Return a new folder and the descriptor that holds its lock, -1 if locking is unsupported. Raises OSError."""
    for _ in range(_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            descriptor = os.open(path, _OPEN)
        except FileNotFoundError:  # a starting server has just removed it as a leftover
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # the same
            os.close(descriptor)
            continue
        except OSError:
            os.close(descriptor)
            return path, -1
        if path.is_dir():
            return path, descriptor
        os.close(descriptor)
    raise FileNotFoundError("every folder created was removed again")


def remove_leftovers() -> None:
    """Remove the folders of killed servers: those of this user in the temporary directory that are not locked."""
    folder = Path(tempfile.gettempdir())
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            _remove_if_left(folder / name)


def _remove_if_left(path: Path) -> None:
    """Remove an unused folder. Raises OSError if it is not a folder (or is a link), cannot be opened, or is in use."""
    descriptor = os.open(path, _OPEN)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
    finally:
        os.close(descriptor)
    _log.info("removed %s, which a server left that was killed", path)


@contextlib.contextmanager
def own_folder(parent: Path | None) -> Iterator[None]:
    """Keep a worker's temporary files in a subfolder of `parent`, if any, that is removed after the block."""
    if parent is None:
        yield
        return
    own = parent / str(os.getpid())
    try:
        own.mkdir(mode=0o700)
    except OSError as error:
        _log.warning("no folder for temporary files: %s", error)
        yield
        return
    tempfile.tempdir = str(own)
    server = os.getppid()
    try:
        yield
    finally:
        shutil.rmtree(own, ignore_errors=True)  # the server does so too, but may have died
        if os.getppid() != server:
            with contextlib.suppress(OSError):  # other workers may still use it
                parent.rmdir()
