"""Atomic file writes: a file is complete or absent, whatever the disk does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

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
