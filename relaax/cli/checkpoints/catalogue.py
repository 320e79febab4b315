"""List, choose, verify, copy and remove the checkpoints at a location."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from relaax.checkpoint import Checkpoint, CheckpointManager, Damaged, Store, StoreError, highest_fence, manifest_key
from relaax.checkpoint import manager as copying
from relaax.checkpoint.evaluation import Evaluation, Rank, evaluations, rank_of, ranked
from relaax.checkpoint.lease import Lease
from relaax.checkpoint.location import checkpoints_of, open_location
from relaax.checkpoint.manager import Advance
from relaax.configuration import unknown


class CatalogueError(Exception):
    """The request cannot be carried out. The message has the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A checkpoint as its manifest describes it.

    `damaged`: the reason why no server can resume from it, or None. `set_aside`: whether a server recorded the damage.
    """

    checkpoint_id: str
    damaged: str | None = None
    time: float | None = None
    global_step: int | None = None
    updates: int | None = None
    mean_return: float | None = None
    rank: Rank | None = None
    evaluation: float | None = None
    shards: int | None = None
    size: int | None = None
    set_aside: bool = False


def open_store(location: str, aws_keys: str | None, aws_endpoint: str | None, new: bool = False) -> Store:
    """Return the store at a folder, in a run directory or in S3. A folder must exist unless `new` is set.

    Raises CatalogueError, StoreError and ConfigurationError.
    """
    if location.startswith("s3://"):
        try:
            return open_location(location, aws_keys, aws_endpoint)
        except StoreError as error:  # S3 has not been contacted yet: the location is wrong
            raise CatalogueError(str(error)) from None
    if "://" in location or not location.strip():
        raise CatalogueError(f"{location!r} is not a location: use a folder, a run directory or s3://BUCKET/KEY")
    folder = checkpoints_of(Path(location))
    if folder.exists() and not folder.is_dir():
        raise CatalogueError(f"{location} is a file, not a folder")
    if not folder.exists() and not new:
        raise CatalogueError(f"{location}: no such folder")
    return open_location(str(folder))


def entries(store: Store) -> list[Entry]:
    """Return all checkpoints: newest first, then checkpoints that are set aside. Omit concurrently deleted ones.

    Parts are not read, only checked for existence.
    """
    manager = CheckpointManager(store)
    keys = set(store.list())
    found = [_entry(manager, checkpoint_id, keys) for checkpoint_id in manager.published()]
    aside = [
        replace(_entry(manager, checkpoint_id, keys), damaged=why, set_aside=True)
        for checkpoint_id, why in manager.aside().items()
    ]
    return [entry for entry in found if entry.damaged is None or not is_gone(store, entry.checkpoint_id)] + aside


def _entry(manager: CheckpointManager, checkpoint_id: str, keys: set[str]) -> Entry:
    try:
        manifest = manager.manifest(checkpoint_id)
        parts: Mapping[str, Any] = manifest["parts"]
        missing = [part["key"] for part in parts.values() if part["key"] not in keys]
        return Entry(
            checkpoint_id,
            f"{missing[0]} is missing" if missing else None,
            manifest["time"],
            manifest["global_step"],
            manifest.get("updates"),
            manifest.get("mean_return"),
            rank_of(manifest),
            found.mean if (found := evaluations(manager.store, keys, [checkpoint_id]).get(checkpoint_id)) else None,
            len(manifest.get("shards", parts)),
            sum(part["bytes"] for part in parts.values()),
        )
    except Damaged as damage:
        return Entry(checkpoint_id, str(damage))


def newest(found: Sequence[Entry]) -> Entry | None:
    """Return the checkpoint that a server would resume from, judged by the manifests."""
    return next((entry for entry in found if entry.damaged is None), None)


def best(found: Sequence[Entry]) -> Entry | None:
    """Return the best checkpoint by evaluation, or by mean return if no checkpoint was evaluated; or None.

    The newest of equal checkpoints is the best. None: no checkpoint has an evaluation or a mean return.
    """
    good = {entry.checkpoint_id: entry for entry in found if entry.damaged is None}
    means = {one: Evaluation(0, 0.0, entry.evaluation) for one, entry in good.items()}
    ranks = {one: entry.rank for one, entry in good.items()}
    best_first = ranked(ranks, means)
    return good[best_first[0]] if best_first else None


def no_checkpoints(store: Store) -> str:
    """Return the message about an empty store."""
    return f"there are no checkpoints in {store.location}"


def select_entries(store: Store, ids: Sequence[str], only_newest: bool, only_best: bool) -> list[Entry]:
    """Return the named entries, the newest, the best, or all. Raises CatalogueError if an entry does not exist."""
    if sum([bool(ids), only_newest, only_best]) > 1:
        raise CatalogueError("give checkpoint ids, --newest or --best: only one of the three")
    found = entries(store)
    if not found:
        raise CatalogueError(no_checkpoints(store))
    if only_newest or only_best:
        one = newest(found) if only_newest else best(found)
        if one is None:
            what = "is intact" if only_newest else "has a mean return: no episode had ended"
            raise CatalogueError(f"no checkpoint in {store.location} {what}")
        return [one]
    by_id = {entry.checkpoint_id: entry for entry in found}
    for wanted in ids:
        if wanted not in by_id:
            raise CatalogueError(f"{store.location}: {unknown('checkpoint', wanted, by_id)}")
    return [by_id[wanted] for wanted in dict.fromkeys(ids)] if ids else found


def load_checkpoint(store: Store, checkpoint_id: str | None, only_best: bool) -> Checkpoint:
    """Return the checkpoint of this id, the best or the newest. Raises CatalogueError, Damaged and StoreError."""
    ids = [] if checkpoint_id is None else [checkpoint_id]
    (entry,) = select_entries(store, ids, only_newest=not ids and not only_best, only_best=only_best)
    return CheckpointManager(store).load(entry.checkpoint_id)


def is_gone(store: Store, checkpoint_id: str) -> bool:
    """Return whether a checkpoint was deleted concurrently: a server keeps a limited number of checkpoints."""
    return manifest_key(checkpoint_id) not in store.list(f"{checkpoint_id}/")


def damages(store: Store, wanted: Sequence[Entry], advance: Advance) -> dict[str, str | None]:
    """Return the damage of each checkpoint by id, None if it is intact. Omit concurrently deleted ones."""
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
    """Copy checkpoints to another store, and return their ids. Existing checkpoints are not overwritten.

    Parts are written and read back, then the manifest is written. Checkpoints that are deleted from the source
    concurrently are omitted. The target's lease is held during the copy, so that no server writes there. The source's
    lease is not held. Raises CatalogueError, Damaged, StoreError and LeaseLost. After an error, the target has all
    checkpoints before the failed one.
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
