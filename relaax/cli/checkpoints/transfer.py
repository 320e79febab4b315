"""Verify, copy and remove several checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from relaax.checkpoint import CheckpointManager, Damaged, Store, highest_fence
from relaax.checkpoint import manager as copying
from relaax.checkpoint.lease import Lease
from relaax.checkpoint.manager import Advance
from relaax.cli.checkpoints.catalogue import CatalogueError, Entry, is_gone


def damages(store: Store, wanted: Sequence[Entry], advance: Advance) -> dict[str, str | None]:
    """Return the damage of each checkpoint by id, None if it is intact. Omit those deleted concurrently."""
    result: dict[str, str | None] = {}
    for entry in wanted:
        try:
            copying.verify(store, entry.checkpoint_id, advance)
            result[entry.checkpoint_id] = None
        except Damaged as damage:
            if entry.set_aside or not is_gone(store, entry.checkpoint_id):
                result[entry.checkpoint_id] = str(damage)
    return result


def copy(source: Store, target: Store, wanted: Sequence[Entry], advance: Advance) -> list[str]:
    """Write checkpoints to another store: parts, which are read back, then the manifest. Nothing is overwritten.

    Returns the ids of the copied ones; those deleted from the source concurrently are omitted. Takes the lease of the
    target, so that no server writes there during the copy, but not that of the source. Raises CatalogueError, Damaged,
    StoreError and LeaseLost; then the target lacks the checkpoint being copied, but has those before it.
    """
    manager = CheckpointManager(target)
    present = {*manager.published(), *manager.aside()}
    there = [entry.checkpoint_id for entry in wanted if entry.checkpoint_id in present]
    if there:
        raise CatalogueError(
            f"{', '.join(there)} in {target.location} would be overwritten: choose others, or another location"
        )
    copied: list[str] = []
    with _leased(target) as lease:
        for entry in reversed(wanted):  # the oldest first: at any time the target holds a history without gaps
            try:
                copying.copy(source, target, entry.checkpoint_id, lease, advance)
            except Damaged:
                if not is_gone(source, entry.checkpoint_id):
                    raise
            else:
                copied.insert(0, entry.checkpoint_id)
    return copied


def remove(store: Store, wanted: Sequence[Entry], advance: Advance) -> list[str]:
    """Delete checkpoints that no server can use, and return their ids; if any of them is intact, delete none.

    Raises CatalogueError and StoreError.
    """
    found = damages(store, [entry for entry in wanted if not entry.set_aside], advance)
    whole = [checkpoint_id for checkpoint_id, damage in found.items() if damage is None]
    if whole:
        raise CatalogueError(
            f"{', '.join(whole)} in {store.location}: intact and not set aside. Only checkpoints that no server "
            "can use are removed; parameter-server.checkpoints_kept limits the others"
        )
    for entry in wanted:
        CheckpointManager(store).remove(entry.checkpoint_id)
    return [entry.checkpoint_id for entry in wanted]


@contextlib.contextmanager
def _leased(store: Store) -> Iterator[Lease]:
    """Hold the store's lease. Raises LeaseHeld, a StoreError, if a server writes there."""
    lease = Lease(store)
    lease.acquire(highest_fence(store))
    try:
        yield lease
    finally:
        lease.release()
