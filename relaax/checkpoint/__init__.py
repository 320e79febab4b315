"""Checkpoints of one location: atomic, verified, published by their manifest, with one writer at a time.

Begin with `manager`, which saves and restores them; `store` is the interface of folders and buckets.
"""

from relaax.checkpoint.array_file import Arrays
from relaax.checkpoint.checkpoint import Checkpoint, manifest_key
from relaax.checkpoint.lease import Lease, LeaseHeld, LeaseLost, LeaseWaitInterrupted
from relaax.checkpoint.local import LocalStore
from relaax.checkpoint.location import open_location, open_store, s3_location
from relaax.checkpoint.manager import CheckpointManager, Milestones, NoUsableCheckpoint
from relaax.checkpoint.manifest import FORMAT, Damaged, LaterFormat, highest_fence, sequence
from relaax.checkpoint.store import (
    Conflict,
    InvalidValue,
    NotFound,
    Store,
    StoreError,
    StoreUnavailable,
    Value,
    check_key,
)

__all__ = [
    "FORMAT",
    "Arrays",
    "Checkpoint",
    "CheckpointManager",
    "Conflict",
    "Damaged",
    "LeaseWaitInterrupted",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "LocalStore",
    "InvalidValue",
    "NoUsableCheckpoint",
    "NotFound",
    "LaterFormat",
    "Milestones",
    "Store",
    "StoreUnavailable",
    "StoreError",
    "Value",
    "check_key",
    "highest_fence",
    "manifest_key",
    "open_location",
    "open_store",
    "s3_location",
    "sequence",
]
