"""The interface of stores of checkpoints, such as a directory or S3."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PIECE_BYTES = 1 << 20
"""Bytes that are read, hashed or sent at a time."""
MAX_VALUE_BYTES = 1 << 28
"""Limit of `get`, for manifests and the lease. Parts may be longer; `pieces` reads them."""

Value = bytes | Sequence[memoryview]
"""Bytes, or consecutive flat buffers, which are not joined."""


class StoreError(Exception):
    """The store failed: it is full, unreachable or denies access. The message names the value and the reason."""


class StoreUnavailable(StoreError):
    """The store is unreachable or overloaded. The same request may succeed later."""


class NotFound(StoreError):
    """There is no value under this key."""


class InvalidValue(StoreError):
    """The value was not written by a store: it is a link, a pipe, a device, a folder, or too long."""


class Conflict(StoreError):
    """Another writer has changed or created the value first."""


def check_key(key: str) -> str:
    """Return `key` if it consists of letters, digits and `. _ -` between slashes. Raises ValueError."""
    if not is_key(key):
        raise ValueError(f"{key!r} is not a valid key: use letters, digits and . _ - between slashes")
    return key


def is_key(text: str) -> bool:
    """Return whether `check_key` accepts `text`. Other names in a store are not ours."""
    return all(_PART.fullmatch(part) for part in text.split("/"))


def check_value_size(where: str, size: int, limit: int) -> None:
    """Raise InvalidValue if a value for `get` is too long. `where`: its location, for the message."""
    if size > limit:
        raise InvalidValue(f"{where} has {size} bytes; a manifest or lease has at most {limit}")


def conflict(where: str, tag: str | None) -> Conflict:
    """Return the error for a conditional write of a value whose expected tag is `tag`."""
    return Conflict(f"{where} {'was changed by another writer' if tag else 'exists already'}")


def buffers_of(value: Value) -> list[memoryview]:
    """Return the value as buffers of bytes, without empty ones."""
    buffers = [memoryview(value)] if isinstance(value, bytes) else list(value)
    return [buffer for buffer in buffers if buffer.nbytes]


class Store(ABC):
    """Values under keys such as `a/b.json`. Writes are atomic, for concurrent readers and if the writer is killed.

    Every method may raise StoreError. Thread-safe.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """The location, for display."""

    def check(self) -> None:  # noqa: B027 - a folder is created on first use
        """Check whether the store can be used, as far as possible without writing. Raises StoreError."""

    @abstractmethod
    def put(self, key: str, value: Value) -> None:
        """Store `value`, replacing any earlier value. It is durable when this method returns."""

    @abstractmethod
    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        """Store `value` if the present value has the tag `tag`, or does not exist if `tag` is None. Return the new tag.

        Of several concurrent writers, exactly one succeeds. Raises Conflict. After another StoreError the value may
        have been stored.
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
        """Delete the value if it exists."""

    def keeps_old_versions(self) -> bool:
        """Return whether the store is known to keep replaced and deleted values without a time limit."""
        return False

    def clean(self) -> None:  # noqa: B027 - a store may have nothing to clean
        """Remove the unfinished files of killed writers. Call it only while no process writes."""
