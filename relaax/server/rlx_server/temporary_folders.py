"""Folders for temporary files of workers, which the server removes.

A worker exits without the interpreter's cleanup, or by a signal, so it may leave files behind. The folder of a server
that was killed is removed by the next server that starts. A folder is locked (flock) while its server, or a worker
that it forked, is alive. No process ids are recorded, so none can be stale.

The public functions do not raise: clients are served even if no folder can be written.
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
"""Prefix of the folders' names. Every version that uses this prefix locks its folder, so unlocked ones are unused."""
_ATTEMPTS = 4
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkerFolders:
    """The server's folder, created for the first worker, with a subfolder named by each worker's process id."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._lock = -1
        self._warned = False

    def ensure(self) -> Path | None:
        """Return the folder, created if missing; None if it cannot be created. The failure is logged once."""
        try:
            if self._path is None or not self._path.is_dir():
                self._unlock()
                self._path, self._lock = _locked_folder()
        except OSError as error:
            self._path = None
            if not self._warned:
                _log.warning("cannot create the folder for the workers' temporary files: %s", error)
            self._warned = True
        return self._path

    def remove(self, pid: int) -> None:
        """Remove the subfolder of a worker that has ended."""
        if self._path is not None:
            shutil.rmtree(self._path / str(pid), ignore_errors=True)

    def close(self) -> None:
        """Remove the folder. All workers must have ended."""
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
        except FileNotFoundError:  # a starting server has removed it as unused
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # the starting server has locked it, to remove it
            os.close(descriptor)
            continue
        except OSError:
            os.close(descriptor)
            return path, -1
        if path.is_dir():
            return path, descriptor
        os.close(descriptor)
    raise FileNotFoundError(f"{_ATTEMPTS} new folders in {tempfile.gettempdir()} were removed by other processes")


def remove_leftovers() -> None:
    """Remove the folders of killed servers: unlocked folders of this user in the temporary directory."""
    folder = Path(tempfile.gettempdir())
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):
            _remove_if_unused(folder / name)


def _remove_if_unused(path: Path) -> None:
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
    _log.info("removed the temporary folder of a killed server: %s", path)


@contextlib.contextmanager
def own_folder(parent: Path | None) -> Iterator[None]:
    """Keep this worker's temporary files in a subfolder of `parent`, and remove it after the block.

    If `parent` is None, the block runs without such a folder.
    """
    if parent is None:
        yield
        return
    own = parent / str(os.getpid())
    try:
        own.mkdir(mode=0o700)
    except OSError as error:
        _log.warning("cannot create this worker's temporary folder: %s", error)
        yield
        return
    tempfile.tempdir = str(own)
    server = os.getppid()
    try:
        yield
    finally:
        shutil.rmtree(own, ignore_errors=True)  # the server also removes it, but may have died
        if os.getppid() != server:
            with contextlib.suppress(OSError):  # other workers may still use it
                parent.rmdir()
