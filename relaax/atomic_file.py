"""Files that are there whole or not at all, whatever the disk does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

Buffer = bytes | memoryview


def write_whole(path: Path, pieces: Iterable[Buffer], mode: int = 0o666) -> None:
    """Put these bytes, one behind the other, in the place of what `path` holds, which stays if that fails.

    What is no plain file, such as /dev/stdout, is written as it is; so is one in a folder where none can be made.
    Raises OSError.
    """
    target = path.resolve()  # of a link, the file that it leads to
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
