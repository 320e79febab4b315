"""Where checkpoints are kept: the interface that a directory, S3 or anything else implements."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIECE_BYTES = 1 << 20
"""How much is read, hashed or sent at once."""

Value = bytes | Sequence[memoryview]
"""Bytes, or flat buffers that stand one behind the other and are not copied into one."""


class StoreError(Exception):
    """The store cannot do what was asked now: it is full, away or forbidden. The message says which and where."""


class StoreAway(StoreError):
    """It cannot be reached, or is not able to now: the same may succeed later."""


class NotFound(StoreError):
    """There is nothing under this key."""


class Conflict(StoreError):
    """Somebody else has changed the value meanwhile, or was first."""


def check_key(key: str) -> str:
    """`key`, where it is parts of letters, digits and `. _ -` between slashes. Raises ValueError."""
    if not all(_PART.fullmatch(part) for part in key.split("/")):
        raise ValueError(f"{key!r} cannot be a key")
    return key


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
        """Where it is, for people."""

    def check(self) -> None:  # noqa: B027 - a folder is made when it is needed
        """Whether it can be used at all, as far as can be told without writing. Raises StoreError."""

    @abstractmethod
    def put(self, key: str, value: Value) -> None:
        """Keep `value`, in place of what was there. It is durable when this returns."""

    @abstractmethod
    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        """Keep `value` where the one there is still that of `tag`; with None, where there is none. Its tag.

        Of several writers at once exactly one succeeds. Raises Conflict. After another StoreError it may be there.
        """

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The value. Raises NotFound."""

    @abstractmethod
    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        """The value, and what `put_if` knows it by. Raises NotFound."""

    @abstractmethod
    def pieces(self, key: str) -> Iterator[bytes]:
        """The value in pieces of about PIECE_BYTES, for what is long. Raises NotFound."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, sorted."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Keep it no longer; nothing happens where it is not there."""

    def clean(self) -> None:  # noqa: B027 - a store may have nothing to clean
        """Remove what writers left that were killed. Called only while nobody writes."""
