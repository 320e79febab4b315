"""Files: atomic writes, bounded reads, and files without a name."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

Buffer = bytes | memoryview


def write_whole(path: Path, pieces: Iterable[Buffer], mode: int = 0o666) -> None:
    """Replace the content of `path` by the concatenated `pieces`; the old content stays if that fails.

    A special file, such as /dev/stdout, is written in place; so is a file in a folder that is not writable.
    Raises OSError.
    """
    target = path.resolve()  # follows a link to its file
    if target.exists() and not (target.is_file() and os.access(target.parent, os.W_OK)):
        with path.open("wb") as file:
            file.writelines(pieces)
        return
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


MAX_BYTES = 2**20


def read_bounded(path: str | os.PathLike[str], most: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file, without waiting for a pipe or device.

    Raises OSError with a sentence as its `strerror` if it is not a regular file or is longer than `most` bytes.
    """
    name = os.fspath(path)
    with open(name, "rb", opener=_open_without_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most:,} bytes", name)
    return content


def _open_without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def read_bounded_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Return the text of a regular file. Raises OSError, as `read_bounded` does, and UnicodeDecodeError."""
    return read_bounded(path).decode(encoding)


def anonymous_file() -> IO[bytes]:
    """Create a file in memory if the system supports it, otherwise in the temporary folder. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("relaax"), "w+b")
    return tempfile.TemporaryFile()


def move_aside(path: Path) -> Path:
    """Move a file or folder to a free name beside it, with the time; return the new path. Raises OSError."""
    stamp, number = time.strftime("%Y%m%d-%H%M%S"), 1
    aside = path.with_name(f"{path.name}.{stamp}")
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.{stamp}-{number}")
    shutil.move(path, aside)
    return aside
