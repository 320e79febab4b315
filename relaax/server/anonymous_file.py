"""A file without a name, which vanishes with its last descriptor."""

from __future__ import annotations

import os
import tempfile
from typing import IO


def anonymous_file() -> IO[bytes]:
    """Create a file in memory if the system supports it, otherwise in the temporary folder. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("relaax"), "w+b")
    return tempfile.TemporaryFile()
