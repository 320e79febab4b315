"""Map keys of a store to checkpoints, and order checkpoints by age."""

from __future__ import annotations

import re
from collections.abc import Iterable

from relaax.checkpoint.store import Store

_ID = re.compile(r"([0-9]{8,})-([0-9]+)(?:-f([0-9]+))?")
ASIDE = "damaged.json"
"""The file in the folder of a checkpoint that was set aside."""


def is_id(text: str) -> bool:
    """Return whether this is the id of a checkpoint."""
    return _ID.fullmatch(text) is not None


def owner(key: str) -> str:
    """Return the id of the checkpoint that a key belongs to; empty if the key is in no folder."""
    folder, slash, _ = key.partition("/")
    return folder if slash else ""


def set_aside(keys: Iterable[str]) -> set[str]:
    """Return the ids of the checkpoints that were set aside."""
    return {owner(key) for key in keys if key == f"{owner(key)}/{ASIDE}" and is_id(owner(key))}


def sequence(checkpoint_id: str) -> int:
    """Return a checkpoint's number at its location, from 1; 0 if this is not a checkpoint's id."""
    match = _ID.fullmatch(checkpoint_id)
    return int(match.group(1)) if match else 0


def highest_fence(store: Store) -> int:
    """Return the highest fence of all checkpoints of a store, finished or not, or 0. Raises StoreError."""
    return max((age(owner(key))[0] for key in store.list()), default=0)


def age(checkpoint_id: str) -> tuple[int, int]:
    """Return the key that orders checkpoints by age: fence first, since a writer that was fenced off may write late."""
    match = _ID.fullmatch(checkpoint_id)
    return (int(match.group(3) or 0), int(match.group(1))) if match else (0, 0)
