"""The interface of stores of checkpoints that a directory, S3 or anything else implements."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIECE_BYTES = 1 << 20
"""How much is read, hashed or sent at once."""
MAX_VALUE_BYTES = 1 << 28
"""What `get` reads at most: a manifest, the lease. Parts are longer, and are read by `pieces`."""

Value = bytes | Sequence[memoryview]
"""Bytes, or flat buffers that stand one behind the other and are not copied into one."""


class StoreError(Exception):
    """The store cannot do what was asked now: it is full, away or forbidden. The message says which and where."""


class StoreAway(StoreError):
    """It cannot be reached, or is not able to now: the same may succeed later."""


class NotFound(StoreError):
    """There is nothing under this key."""


class NoValue(StoreError):
    """What is there is none that a store wrote: a link, a pipe, a device, a folder, or longer than any."""


class Conflict(StoreError):
    """Somebody else has changed the value meanwhile, or was first."""


def check_key(key: str) -> str:
    """`key`, if it is parts of letters, digits and `. _ -` between slashes. Raises ValueError."""
    if not is_key(key):
        raise ValueError(f"{key!r} cannot be a key")
    return key


def is_key(text: str) -> bool:
    """Whether `check_key` lets it pass. What has another name in a store is nobody's here."""
    return all(_PART.fullmatch(part) for part in text.split("/"))


def buffers_of(value: Value) -> list[memoryview]:
    """The value as buffers of bytes, none of them empty."""
    buffers = [memoryview(value)] if isinstance(value, bytes) else list(value)
    return [buffer for buffer in buffers if buffer.nbytes]


class Store(ABC):
    """Whole values under keys such as `a/b.json`. Every method may raise StoreError. Thread-safe.

    A value is there whole or not at all, also for a reader at the same time and after the writer was killed.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """The location, for people."""

    def check(self) -> None:  # noqa: B027 - a folder is made when it is needed
        """Whether it can be used at all, as far as can be told without writing. Raises StoreError."""

    @abstractmethod
    def put(self, key: str, value: Value) -> None:
        """Keep `value`, in place of what was there. It is durable when this returns."""

    @abstractmethod
    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        """Keep `value` where the one there is still that of `tag`; with None, if there is none. Its tag.

        Of several writers at once exactly one succeeds. Raises Conflict. After another StoreError it may be there.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The value, of up to MAX_VALUE_BYTES. Raises NotFound and NoValue."""

    @abstractmethod
    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        """The value, and what `put_if` knows it by. Raises NotFound and NoValue."""

    @abstractmethod
    def size(self, key: str) -> int:
        """How many bytes the value has. Raises NotFound and NoValue."""

    @abstractmethod
    def pieces(self, key: str) -> Iterator[bytes]:
        """The value in pieces of about PIECE_BYTES, for what is long. Raises NotFound and NoValue."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, sorted."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Keep it no longer; nothing happens if it is not there."""

    def clean(self) -> None:  # noqa: B027 - a store may have nothing to clean
        """Remove what writers left that were killed. Called only while nobody writes."""
