"""Checkpoints: atomic, verified, published by their manifest."""

from relaax.checkpoint.checkpoint import FORMAT, Arrays, Checkpoint, Damaged, manifest_key
from relaax.checkpoint.local import LocalStore
from relaax.checkpoint.manager import CheckpointManager
from relaax.checkpoint.store import NotFound, Store, StoreError, check_key

__all__ = [
    "FORMAT",
    "Arrays",
    "Checkpoint",
    "CheckpointManager",
    "Damaged",
    "LocalStore",
    "NotFound",
    "Store",
    "StoreError",
    "check_key",
    "manifest_key",
]
