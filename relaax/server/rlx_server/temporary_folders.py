"""Where workers leave what libraries write to temporary files: in a folder of the server's, which removes it.

A worker ends without the interpreter's end, by a signal perhaps, so it cannot be trusted to clear up. Nor can a server
that is killed: the next one that starts removes what it left. A folder is locked (flock) for as long as its server
lives, or a worker that it forked; which processes those are is nowhere written down, and so cannot be wrong.

Nothing here raises: without a folder to write to clients are served all the same.
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
"""Folders of this name are locked for as long as they are in use, by every version that gives them this name."""
_ATTEMPTS = 4
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkerFolders:
    """The server's folder, made when there is a first worker, with a subfolder for each worker's process id."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1
        self._warned = False

    def made(self) -> Path | None:
        """The folder; None where there cannot be one, which is logged once. One that was tidied away is made anew."""
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
        """A worker has ended."""
        if self._path is not None:
            shutil.rmtree(self._path / str(pid), ignore_errors=True)

    def close(self) -> None:
        """All workers have ended."""
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked_folder() -> tuple[Path, int]:
    """A new folder and the descriptor that its lock goes with, -1 where folders cannot be locked. Raises OSError."""
    for _ in range(_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            descriptor = os.open(path, _OPEN)
        except FileNotFoundError:  # a server that starts has just taken it for another's
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
    raise FileNotFoundError("each one that was made is gone again")


def remove_leftovers() -> None:
    """Remove the folders of servers that were killed: the user's own in the temporary directory, locked by nobody."""
    folder = Path(tempfile.gettempdir())
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            _remove_if_left(folder / name)


def _remove_if_left(path: Path) -> None:
    """Raises OSError where it is no folder (a link to one is none), cannot be opened, or is in use."""
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
    """In a worker: its temporary files are in a subfolder of `parent`, where there is one, and gone with the block."""
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
        shutil.rmtree(own, ignore_errors=True)  # the server does it besides, but may have died
        if os.getppid() != server:
            with contextlib.suppress(OSError):  # others may still be there
                parent.rmdir()
