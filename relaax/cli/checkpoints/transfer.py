"""Several checkpoints at once: to verify, copy and remove them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from relaax.checkpoint import CheckpointManager, Damaged, Store, copying, highest_fence
from relaax.checkpoint.copying import Advance
from relaax.checkpoint.lease import Lease
from relaax.cli.checkpoints.catalogue import CatalogueError, Entry, is_gone


def damages(store: Store, wanted: Sequence[Entry], advance: Advance) -> dict[str, str | None]:
    """What is wrong with each checkpoint, by its id, None where nothing is. Those deleted meanwhile are left out."""
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
    """Write checkpoints to another store: parts, read back, and then the manifest. Nothing there is overwritten.

    Returns the ids of the copied ones; those that are deleted from the source meanwhile are left out. Takes the lease
    of the target, so that no server writes there meanwhile, but not that of the source. Raises CatalogueError,
    Damaged, StoreError and LeaseLost; then the checkpoint being copied is not there, and those before it are.
    """
    manager = CheckpointManager(target)
    present = {*manager.published(), *manager.aside()}
    there = [entry.checkpoint_id for entry in wanted if entry.checkpoint_id in present]
    if there:
        raise CatalogueError(
            f"{', '.join(there)} in {target.location} would be overwritten: name others, or another location"
        )
    copied: list[str] = []
    with _leased(target) as lease:
        for entry in reversed(wanted):  # the oldest first: what is there at any time is a history without gaps
            try:
                copying.copy(source, target, entry.checkpoint_id, lease, advance)
            except Damaged:
                if not is_gone(source, entry.checkpoint_id):
                    raise
            else:
                copied.insert(0, entry.checkpoint_id)
    return copied


def remove(store: Store, wanted: Sequence[Entry], advance: Advance) -> list[str]:
    """Delete checkpoints that no server can use; each of the others is a reason to delete none. Their ids.

    Raises CatalogueError and StoreError.
    """
    found = damages(store, [entry for entry in wanted if not entry.set_aside], advance)
    whole = [checkpoint_id for checkpoint_id, damage in found.items() if damage is None]
    if whole:
        raise CatalogueError(
            f"{', '.join(whole)} in {store.location}: whole, and was not set aside. What is removed is what no server "
            "can use; how many others are kept is parameter-server.checkpoints_kept"
        )
    for entry in wanted:
        CheckpointManager(store).remove(entry.checkpoint_id)
    return [entry.checkpoint_id for entry in wanted]


@contextlib.contextmanager
def _leased(store: Store) -> Iterator[Lease]:
    """Raises LeaseHeld, a StoreError, where a server writes there."""
    lease = Lease(store)
    lease.acquire(highest_fence(store))
    try:
        yield lease
    finally:
        lease.release()
