"""Reading whole checkpoints: to verify them, and to write them elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from relaax.checkpoint import (
    CheckpointManager,
    Conflict,
    Damaged,
    NotFound,
    Store,
    StoreError,
    highest_fence,
    manifest_key,
)
from relaax.checkpoint.checkpoint import decode_manifest, verify_part
from relaax.checkpoint.lease import Lease
from relaax.checkpoint.whole import length
from relaax.cli.checkpoints.catalogue import Entry, Refused, is_gone

Advance = Callable[[int], None]
"""Told how many bytes have been read or written."""


def damages(store: Store, wanted: Sequence[Entry], advance: Advance) -> dict[str, str | None]:
    """What is wrong with each checkpoint, by its id, None where nothing is. Those deleted meanwhile are left out."""
    result: dict[str, str | None] = {}
    for entry in wanted:
        try:
            _verify(store, entry.checkpoint_id, advance)
            result[entry.checkpoint_id] = None
        except Damaged as damage:
            if not is_gone(store, entry.checkpoint_id):
                result[entry.checkpoint_id] = str(damage)
    return result


def copy(source: Store, target: Store, wanted: Sequence[Entry], advance: Advance) -> list[str]:
    """Write checkpoints to another store: parts, read back, and then the manifest. Nothing there is overwritten.

    The ids of those that were copied; what is deleted from the source meanwhile is left out.
    No server may write there meanwhile, so the lease of the target is taken; that of the source is not. Raises Refused,
    Damaged, StoreError and LeaseLost; then the checkpoint that was under way is not there, and those before it are.
    """
    published = set(CheckpointManager(target).published())
    there = [entry.checkpoint_id for entry in wanted if entry.checkpoint_id in published]
    if there:
        raise Refused(f"{', '.join(there)} in {target.location} would be overwritten: name others, or another location")
    copied: list[str] = []
    with _leased(target) as lease:
        for entry in reversed(wanted):  # the oldest first: what is there at any time is a history without gaps
            try:
                _copy(source, target, entry.checkpoint_id, lease, advance)
            except Damaged:
                if not is_gone(source, entry.checkpoint_id):
                    raise
            else:
                copied.insert(0, entry.checkpoint_id)
    return copied


def _verify(store: Store, checkpoint_id: str, advance: Advance) -> None:
    manifest = CheckpointManager(store).manifest(checkpoint_id)
    length(manifest)
    for description in _parts(checkpoint_id, manifest):
        with _missing_is_damage():
            verify_part(_counted(store.pieces(description["key"]), advance), description)


def _copy(source: Store, target: Store, checkpoint_id: str, lease: Lease, advance: Advance) -> None:
    key = manifest_key(checkpoint_id)
    with _missing_is_damage():
        value = source.get(key)
    try:
        manifest = decode_manifest(value)
    except Damaged as damage:
        raise Damaged(f"{checkpoint_id}: {damage}") from None
    written: list[str] = []
    try:
        for description in _parts(checkpoint_id, manifest):
            with _missing_is_damage():
                pieces = list(_counted(source.pieces(description["key"]), advance))
            verify_part(pieces, description)
            written.append(description["key"])
            target.put(description["key"], [memoryview(piece) for piece in pieces])
            try:
                verify_part(target.pieces(description["key"]), description)
            except Damaged as damage:
                raise StoreError(f"{target.location}: {damage}") from None
        lease.check()
        written.insert(0, key)  # it may arrive although the store fails: then it goes first
        target.put_if(key, value, None)
    except Conflict:
        raise  # another writer's: it is there, and none of ours to delete
    except BaseException:
        with contextlib.suppress(StoreError):  # where the manifest stays, so do its parts
            for one in written:
                target.delete(one)
        raise


def _parts(checkpoint_id: str, manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The descriptions of its parts. Raises Damaged where one lies elsewhere: what is copied must not land there."""
    parts = list(manifest["parts"].values())
    for part in parts:
        if not part["key"].startswith(f"{checkpoint_id}/"):
            raise Damaged(f"{checkpoint_id} says that {part['key']} is a part of it")
    return parts


def _counted(pieces: Iterator[bytes], advance: Advance) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        advance(len(piece))


@contextlib.contextmanager
def _missing_is_damage() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise Damaged(str(error)) from None


@contextlib.contextmanager
def _leased(store: Store) -> Iterator[Lease]:
    """Raises LeaseHeld, a StoreError, where a server writes there."""
    lease = Lease(store)
    lease.acquire(highest_fence(store))
    try:
        yield lease
    finally:
        lease.release()
