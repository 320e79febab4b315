"""Keeping the memory of long messages for the next ones."""

from __future__ import annotations

import ctypes
import functools
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_DEFAULT_MMAP_THRESHOLD = 128 * 2**10
_COPIES = 16


@functools.cache
def keep_freed_memory(message_bytes: int) -> None:
    """Let the C library keep what messages of this length free, instead of giving it back to the kernel.

    Every message is copied a few times on its way, and glibc maps fresh pages for each long copy: touching them costs
    more than copying. Measured for 2.7 MB each way: 6 ms a round trip instead of 10. Does nothing where messages are
    short or the C library is another.
    """
    if message_bytes < _DEFAULT_MMAP_THRESHOLD or not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return
    mallopt(_M_MMAP_THRESHOLD, min(2 * message_bytes, _LARGEST_MMAP_THRESHOLD))
    mallopt(_M_TRIM_THRESHOLD, min(_COPIES * message_bytes, 2**30))
