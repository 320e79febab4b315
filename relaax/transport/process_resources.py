"""Raise the limit of descriptors of a process: each vector that it shares, or that is shared with it, takes some."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import resource
import sys

_ENOUGH = 2**16


def allow_descriptors() -> None:
    """As many as the system lets it have: a worker takes up to six of either side, and 1024 are a common limit."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _ENOUGH if most == resource.RLIM_INFINITY else min(_ENOUGH, most)
    if limit != resource.RLIM_INFINITY and limit < enough:
        with contextlib.suppress(OSError, ValueError):  # the system allows fewer than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_DEFAULT_MMAP_THRESHOLD = 128 * 2**10
_COPIES = 16


@functools.cache
def keep_freed_memory(message_bytes: int) -> None:
    """Make the C library keep freed memory of messages of this length instead of returning it to the kernel.

    Every message is copied a few times on its way, and glibc maps fresh pages for each long copy: touching them costs
    more than copying. Measured for 2.7 MB each way: 6 ms a round trip instead of 10. Does nothing if messages are
    short or the C library is another.
    """
    if message_bytes < _DEFAULT_MMAP_THRESHOLD:
        return
    _set(_M_MMAP_THRESHOLD, min(2 * message_bytes, _LARGEST_MMAP_THRESHOLD))
    _set(_M_TRIM_THRESHOLD, min(_COPIES * message_bytes, 2**30))


def share_one_arena() -> None:
    """Make all threads of a worker allocate from one heap: memory that one has freed is reused by the others.

    For a process in which one thread works and few others wait: 11 MB less for the Atari network, and not slower. To be
    called before there are other threads. Does nothing if the C library is not glibc.
    """
    _set(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Return freed memory of all heaps to the kernel, that of `keep_freed_memory` included.

    Does nothing if the C library is not glibc.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _set(parameter: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(parameter, value)
