"""Where checkpoints are kept: the interface that a directory, S3 or anything else implements."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class StoreError(Exception):
    """The store cannot do what was asked now: it is full, away or forbidden. The message says which and where."""


class NotFound(StoreError):
    """There is nothing under this key."""


def check_key(key: str) -> str:
    """`key`, where it is parts of letters, digits and `. _ -` between slashes. Raises ValueError."""
    if not all(_PART.fullmatch(part) for part in key.split("/")):
        raise ValueError(f"{key!r} cannot be a key")
    return key


class Store(ABC):
    """Whole values under keys such as `a/b.json`. Every method may raise StoreError.

    A value is there whole or not at all, also for a reader at the same time and after the writer was killed.
    """

    @property
    @abstractmethod
    def location(self) -> str:
        """Where it is, for people."""

    @abstractmethod
    def put(self, key: str, value: bytes) -> None:
        """Keep `value`, in place of what was there. It is durable when this returns."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """The value. Raises NotFound."""

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, sorted."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Keep it no longer; nothing happens where it is not there."""

    def clean(self) -> None:  # noqa: B027 - a store may have nothing to clean
        """Remove what writers left that were killed. Called only while nobody writes."""
