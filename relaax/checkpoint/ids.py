"""Which keys of a store belong to which checkpoint, and which of two checkpoints is the newer one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from relaax.checkpoint.store import Store

_ID = re.compile(r"([0-9]{8,})-([0-9]+)(?:-f([0-9]+))?")
ASIDE = "damaged.json"
"""What stands in the folder of a checkpoint that was set aside."""


def is_id(text: str) -> bool:
    """Whether a checkpoint is called so."""
    return _ID.fullmatch(text) is not None


def owner(key: str) -> str:
    """The checkpoint that a key belongs to, where it is one's; empty if it is in no folder."""
    folder, slash, _ = key.partition("/")
    return folder if slash else ""


def set_aside(keys: Iterable[str]) -> set[str]:
    """The checkpoints that were set aside."""
    return {owner(key) for key in keys if key == f"{owner(key)}/{ASIDE}" and is_id(owner(key))}


def sequence(checkpoint_id: str) -> int:
    """Its number among the checkpoints of its location, from 1; 0 if it is no checkpoint's id."""
    match = _ID.fullmatch(checkpoint_id)
    return int(match.group(1)) if match else 0


def highest_fence(store: Store) -> int:
    """The highest fence of all checkpoints of a store, finished or not; 0 if there is none. Raises StoreError."""
    return max((age(owner(key))[0] for key in store.list()), default=0)


def age(checkpoint_id: str) -> tuple[int, int]:
    """What orders checkpoints: a writer that was fenced off and did not know it yet wrote nothing newer."""
    match = _ID.fullmatch(checkpoint_id)
    return (int(match.group(3) or 0), int(match.group(1))) if match else (0, 0)
