"""A file without a name, which is gone with its last descriptor."""

from __future__ import annotations

import os
import tempfile
from typing import IO


def anonymous_file() -> IO[bytes]:
    """In memory, where the system has such files; elsewhere in the temporary folder. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("relaax"), "w+b")
    return tempfile.TemporaryFile()
