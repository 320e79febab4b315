"""The interface of stores of checkpoints, which a directory, S3 or anything else implements."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIECE_BYTES = 1 << 20
"""The number of bytes that are read, hashed or sent at once."""
MAX_VALUE_BYTES = 1 << 28
"""The maximum for `get`: a manifest, the lease. Parts are longer, and are read by `pieces`."""

Value = bytes | Sequence[memoryview]
"""Bytes, or flat buffers that follow each other and are not copied into one."""


class StoreError(Exception):
    """The store cannot do this now: it is full, unreachable or forbidden. The message says what, and where."""


class StoreUnavailable(StoreError):
    """The store is unreachable or unable for now: the same request may succeed later."""


class NotFound(StoreError):
    """There is no value under this key."""


class InvalidValue(StoreError):
    """The value is not one that a store wrote: it is a link, a pipe, a device, a folder, or too long."""


class Conflict(StoreError):
    """Another writer has changed the value, or was first."""


def check_key(key: str) -> str:
    """Return `key` if it consists of letters, digits and `. _ -` between slashes. Raises ValueError."""
    if not is_key(key):
        raise ValueError(f"{key!r} cannot be a key")
    return key


def is_key(text: str) -> bool:
    """Return whether `check_key` accepts it. Other names in a store are not ours."""
    return all(_PART.fullmatch(part) for part in text.split("/"))


def buffers_of(value: Value) -> list[memoryview]:
    """Return the value as buffers of bytes, none of them empty."""
    buffers = [memoryview(value)] if isinstance(value, bytes) else list(value)
    return [buffer for buffer in buffers if buffer.nbytes]


class Store(ABC):
    """Whole values under keys such as `a/b.json`, there whole or not at all, also for a reader at the same time and
    after the writer was killed. Every method may raise StoreError. Thread-safe.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """The location, for people."""

    def check(self) -> None:  # noqa: B027 - a folder is made when it is needed
        """Check whether the store can be used, as far as possible without writing. Raises StoreError."""

    @abstractmethod
    def put(self, key: str, value: Value) -> None:
        """Store `value`, replacing what was there. It is durable when this returns."""

    @abstractmethod
    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        """Store `value` if the present one still has this tag, or, for None, if there is none. Return its tag. Of
        several writers at once exactly one succeeds. Raises Conflict; after another StoreError it may be there.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Return the value, of up to MAX_VALUE_BYTES. Raises NotFound and InvalidValue."""

    @abstractmethod
    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        """Return the value and its tag for `put_if`. Raises NotFound and InvalidValue."""

    @abstractmethod
    def size(self, key: str) -> int:
        """Return the value's length in bytes. Raises NotFound and InvalidValue."""

    @abstractmethod
    def pieces(self, key: str) -> Iterator[bytes]:
        """Yield the value in pieces of about PIECE_BYTES. Raises NotFound and InvalidValue."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the value; nothing happens if it does not exist."""

    def keeps_old_versions(self) -> bool:
        """Return whether the store is known to keep values that were replaced or deleted, without an end."""
        return False

    def clean(self) -> None:  # noqa: B027 - a store may have nothing to clean
        """Remove what killed writers left. Call it only while nobody writes."""
