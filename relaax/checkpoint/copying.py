"""Verify whole checkpoints, and copy them to another store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from relaax.checkpoint.checkpoint import manifest_key, verify_part
from relaax.checkpoint.evaluation import evaluation_key
from relaax.checkpoint.flat_vectors import length
from relaax.checkpoint.lease import Lease
from relaax.checkpoint.manifest import Damaged, decode_manifest
from relaax.checkpoint.store import Conflict, NotFound, NoValue, Store, StoreError

Advance = Callable[[int], None]
"""Called with the number of bytes that have been read or written."""


def verify(store: Store, checkpoint_id: str, advance: Advance) -> None:
    """Compare every byte with its description. Raises Damaged."""
    manifest = _read(store, checkpoint_id)[1]
    if "shards" in manifest:
        length(manifest)
    for description in manifest["parts"].values():
        with _missing_is_damage():
            _check_size(store, description)
            verify_part(_counted(store.pieces(description["key"]), advance), description)


def copy(source: Store, target: Store, checkpoint_id: str, lease: Lease, advance: Advance = lambda count: None) -> None:
    """Copy a checkpoint to another store, under that store's lease: parts, which are read back, and then the manifest.

    Raises Damaged, StoreError and LeaseLost; then it is not there.
    """
    value, manifest = _read(source, checkpoint_id)
    key = manifest_key(checkpoint_id)
    written: list[str] = []
    try:
        for description in manifest["parts"].values():
            with _missing_is_damage():
                _check_size(source, description)
                pieces = list(_counted(source.pieces(description["key"]), advance))
            verify_part(pieces, description)
            written.append(description["key"])
            target.put(description["key"], [memoryview(piece) for piece in pieces])
            try:
                verify_part(target.pieces(description["key"]), description)
            except Damaged as damage:
                raise StoreError(f"{target.location}: {damage}") from None
        lease.check()
        with contextlib.suppress(NotFound, NoValue):
            target.put(evaluation_key(checkpoint_id), source.get(evaluation_key(checkpoint_id)))
            written.append(evaluation_key(checkpoint_id))
        written.insert(0, key)  # it may arrive although the store fails: then it goes first
        target.put_if(key, value, None)
    except Conflict:
        raise  # another writer's: it is there, and none of ours to delete
    except BaseException:
        with contextlib.suppress(StoreError):  # if the manifest stays, so do its parts
            for one in written:
                target.delete(one)
        raise


def _read(store: Store, checkpoint_id: str) -> tuple[bytes, dict[str, Any]]:
    """Return the manifest as it was written, and its content."""
    with _missing_is_damage():
        value = store.get(manifest_key(checkpoint_id))
    try:
        return value, decode_manifest(value, checkpoint_id)
    except Damaged as damage:
        raise type(damage)(f"{checkpoint_id}: {damage}") from None


def _check_size(store: Store, description: Mapping[str, Any]) -> None:
    """Check a part's size before reading it: a file may be longer than any disk."""
    size = store.size(description["key"])
    if size != description["bytes"]:
        raise Damaged(f"{description['key']} has {size} bytes, not {description['bytes']}")


def _counted(pieces: Iterator[bytes], advance: Advance) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        advance(len(piece))


@contextlib.contextmanager
def _missing_is_damage() -> Iterator[None]:
    try:
        yield
    except (NotFound, NoValue) as error:
        raise Damaged(str(error)) from None
