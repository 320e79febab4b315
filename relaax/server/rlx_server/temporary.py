"""Where workers leave what libraries write to temporary files: in a folder of the server's, which removes it.

A worker ends without the interpreter's end, by a signal perhaps, so it cannot be trusted to clear up. Nothing here
raises: without a folder to write to clients are served all the same.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)

PREFIX = "relaax-rlx-server-"


class WorkerFolders:
    """The server's folder, made when there is a first worker, with a subfolder for each worker's process id."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._warned = False

    def made(self) -> Path | None:
        """The folder; None where there cannot be one, which is logged once. One that was tidied away is made anew."""
        try:
            if self._path is None or not self._path.is_dir():
                self._path = Path(tempfile.mkdtemp(prefix=PREFIX))
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
