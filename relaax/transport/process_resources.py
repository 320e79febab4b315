"""Limits of a process: open descriptors (each shared vector needs some), and memory that the allocator keeps."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import resource
import sys

_ENOUGH = 2**16


def allow_descriptors() -> None:
    """Raise the limit of open descriptors, up to `_ENOUGH`.

    A worker needs up to six descriptors in each process, and 1024 is a common limit.
    """
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _ENOUGH if most == resource.RLIM_INFINITY else min(_ENOUGH, most)
    if limit != resource.RLIM_INFINITY and limit < enough:
        with contextlib.suppress(OSError, ValueError):  # the system may allow fewer than its stated maximum
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, most))


_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_DEFAULT_MMAP_THRESHOLD = 128 * 2**10
_COPIES = 16


@functools.cache
def keep_freed_memory(message_bytes: int) -> None:
    """Make glibc keep the freed memory of messages of this length instead of returning it to the kernel.

    Every message is copied a few times, and glibc maps new pages for each long copy. Touching these costs more than
    copying. Measured for 2.7 MB in each direction, a round trip takes 6 ms instead of 10. Has no effect if messages are
    short, or if the C library is not glibc.
    """
    if message_bytes < _DEFAULT_MMAP_THRESHOLD:
        return
    _set(_M_MMAP_THRESHOLD, min(2 * message_bytes, _LARGEST_MMAP_THRESHOLD))
    _set(_M_TRIM_THRESHOLD, min(_COPIES * message_bytes, 2**30))


def share_one_arena() -> None:
    """Make all threads of a worker allocate from one heap, so that they reuse each other's freed memory.

    For a process in which one thread works and a few others wait: it saves 11 MB for the Atari network, and is not
    slower. Call it before other threads start. Has no effect if the C library is not glibc.
    """
    _set(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Return the freed memory of all heaps to the kernel, including that of `keep_freed_memory`.

    Has no effect if the C library is not glibc.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _set(parameter: int, value: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).mallopt(parameter, value)
