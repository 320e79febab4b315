"""Files of an operator, such as tokens, certificates and lists: regular ones of bounded length."""

from __future__ import annotations

import errno
import os
import stat

MAX_BYTES = 2**20


def read_bounded(path: str | os.PathLike[str], most: int = MAX_BYTES) -> bytes:
    """Return the content of a file, which is not waited for: a pipe or a device may have no content, or no end.

    Raises OSError, whose `strerror` is a sentence, if it is not a regular file or is longer than `most` bytes.
    """
    name = os.fspath(path)
    with open(name, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", name)
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it is longer than {most:,} bytes", name)
    return content


def _open_at_once(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def read_bounded_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """Return the text of such a file. Raises OSError and UnicodeDecodeError."""
    return read_bounded(path).decode(encoding)
