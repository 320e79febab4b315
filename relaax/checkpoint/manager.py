"""Saving, restoring and thinning out the checkpoints of one location."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from relaax.checkpoint.array_file import Arrays, to_buffers
from relaax.checkpoint.checkpoint import (
    FORMAT,
    Checkpoint,
    Damaged,
    decode_manifest,
    decode_part,
    describe_part,
    encode_manifest,
    manifest_key,
    part_key,
    verify_part,
)
from relaax.checkpoint.lease import Lease, LeaseLost
from relaax.checkpoint.store import Conflict, NotFound, Store, StoreError

_log = logging.getLogger(__name__)
_ID = re.compile(r"(\d{8,})-(\d+)(?:-f(\d+))?")
_FAILURES = 3  # checkpoints that cannot be deleted, after which the others are left for later: each may take a minute

Parts = Collection[str] | Callable[[Mapping[str, Any]], Collection[str]]
"""Names of parts, or what picks them from a manifest."""


class CheckpointManager:
    """The checkpoints of one store. Used by one thread at a time, and by one writer at a time.

    A checkpoint's id is `SEQUENCE-GLOBALSTEP`, and where it was saved under a lease `-fFENCE` stands behind that.
    Newest means of the highest fence, and of these saved last, whatever the global step.

    Every method may raise StoreError. With a `lease` the methods that write raise LeaseLost where it is another's now.
    """

    def __init__(self, store: Store, keep: int = 5, keep_best: int = 1, lease: Lease | None = None) -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, not {keep}")
        self.store = store
        self.lease = lease
        self._keep = keep
        self._keep_best = keep_best
        self._damaged: set[str] = set()
        self._reserved: int | None = None
        self._given = 0  # the highest number that `begin` has given
        self._leftovers: set[str] = set()  # keys that could not be deleted and belong to nothing
        self._abandoned: set[str] = set()  # checkpoints of which something may be left
        self._returns: dict[str, float | None] = {}

    def published(self) -> list[str]:
        """Ids of the checkpoints that have a manifest, the newest first; not those that this manager abandoned."""
        return self._published(self.store.list())

    def manifest(self, checkpoint_id: str) -> dict[str, Any]:
        """What one checkpoint says of itself; its parts are not read. Raises Damaged."""
        try:
            return decode_manifest(self.store.get(manifest_key(checkpoint_id)))
        except NotFound as error:
            raise Damaged(str(error)) from None

    def load(self, checkpoint_id: str, parts: Parts | None = None) -> Checkpoint:
        """One checkpoint, verified; of its parts only those that are wanted. Raises Damaged."""
        manifest = self.manifest(checkpoint_id)
        described = manifest["parts"]
        names = list(described) if parts is None else parts(manifest) if callable(parts) else parts
        missing = [name for name in names if name not in described]
        if missing:
            raise Damaged(f"checkpoint {checkpoint_id} has no part {missing[0]!r}")
        try:
            read = {name: decode_part(self.store.pieces(described[name]["key"]), described[name]) for name in names}
        except NotFound as error:
            raise Damaged(str(error)) from None
        return Checkpoint(checkpoint_id, read, manifest)

    def restore(self, parts: Parts | None = None) -> Checkpoint | None:
        """The newest checkpoint whose wanted parts verify; None where there is none.

        The log names those that are damaged. What is known to be damaged is not read again.
        """
        found = self.published()
        for checkpoint_id in found:
            if checkpoint_id in self._damaged:
                continue
            try:
                return self.load(checkpoint_id, parts)
            except Damaged as damage:
                self.note_damaged(checkpoint_id)
                _log.error("checkpoint %s in %s is damaged and skipped: %s", checkpoint_id, self.store.location, damage)
        if found:
            _log.error("none of the %d checkpoints in %s can be used", len(found), self.store.location)
        return None

    def note_damaged(self, checkpoint_id: str) -> None:
        """It cannot be used: from now on it is not counted among those that are kept."""
        self._damaged.add(checkpoint_id)

    def clean(self) -> None:
        """Remove what writers left that were killed before they published. Called only while nobody writes.

        Where the store cannot do it now, what was left stays: it is in nobody's way, and goes another time.
        """
        try:
            self._clean()
        except StoreError as error:
            _log.warning("what unfinished checkpoints may have left stays for now: %s", error)

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Write the parts, read them back, publish the manifest, and delete what is kept no longer."""
        checkpoint_id = self.begin(global_step)
        try:
            described = {name: self.write_part(checkpoint_id, name, arrays) for name, arrays in parts.items()}
            full = self.publish(checkpoint_id, global_step, described, manifest)
        except Conflict:
            raise  # another writer's: it is there, and none of ours to delete
        except (StoreError, LeaseLost):
            self.abandon(checkpoint_id, parts)
            raise
        self.thin_out()
        return Checkpoint(checkpoint_id, parts, full)

    def reserve(self) -> None:
        """Ask the store for the next checkpoint's number, so that `begin` need not: it then does no I/O."""
        self._reserved = self._next()

    def begin(self, global_step: int) -> str:
        """The id of a new checkpoint, whose number no other one has, nor one that was abandoned."""
        if self.lease:
            self.lease.check_known()
        if self._reserved is None:
            self._reserved = self._next()
        self._given, self._reserved = self._reserved, None
        return f"{self._given:08d}-{global_step}" + (f"-f{self.lease.fence}" if self.lease else "")

    def write_part(self, checkpoint_id: str, name: str, arrays: Arrays) -> dict[str, Any]:
        """Write a part and read it back. What the manifest says of it. Any process may do that for its own part."""
        key = part_key(checkpoint_id, name)
        buffers = to_buffers(arrays)
        described = describe_part(key, buffers)
        self.store.put(key, buffers)
        try:
            verify_part(self.store.pieces(key), described)
        except Damaged as damage:
            raise StoreError(str(damage)) from None
        return described

    def publish(
        self,
        checkpoint_id: str,
        global_step: int,
        descriptions: Mapping[str, Mapping[str, Any]],
        manifest: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Make it a checkpoint: all its parts are written. The whole manifest.

        `descriptions`: what `write_part` said, by the part's name. `manifest["mean_return"]`, a number or None, decides
        which checkpoints are the best. Nothing is deleted here, so that no lock is held meanwhile: `thin_out` comes
        after it, or `abandon` where it cannot be published.
        """
        full = {
            **manifest,
            "format": FORMAT,
            "id": checkpoint_id,
            "global_step": global_step,
            "time": time.time(),
            "parts": {name: dict(description) for name, description in descriptions.items()},
        }
        if self.lease:
            full["fence"] = self.lease.fence
        try:
            if self.lease:
                self.lease.check()
            self.store.put_if(manifest_key(checkpoint_id), encode_manifest(full), None)
        except Conflict:
            raise  # another writer's: it is there, and none of ours to delete
        except (StoreError, LeaseLost):
            self._give_up(checkpoint_id, descriptions)
            raise
        return full

    def thin_out(self) -> None:
        """Delete what is kept no longer. Where the store cannot do it now, it is done after another checkpoint."""
        try:
            self._thin_out()
        except StoreError as error:
            _log.warning("old checkpoints are kept for now: %s", error)

    def abandon(self, checkpoint_id: str, names: Iterable[str]) -> None:
        """Delete what there may be of a checkpoint that could not be saved; what cannot be deleted now goes later."""
        self._give_up(checkpoint_id, names)
        self._delete_leftovers()

    def _give_up(self, checkpoint_id: str, names: Iterable[str]) -> None:
        # It may be published although the store failed: the manifest goes first, and nobody returns to it meanwhile.
        self._abandoned.add(checkpoint_id)
        self._leftovers.update([manifest_key(checkpoint_id), *(part_key(checkpoint_id, name) for name in names)])

    def _published(self, keys: Iterable[str]) -> list[str]:
        owners = (_owner(key) for key in keys if key.endswith("/manifest.json"))
        found = (owner for owner in owners if _ID.fullmatch(owner) and owner not in self._abandoned)
        return sorted(found, key=_age, reverse=True)

    def _next(self) -> int:
        keys = self.store.list()
        self._leftovers.intersection_update(keys)  # what never came to be needs no deleting
        self._abandoned.intersection_update(map(_owner, keys))
        return max(self._given, *(sequence(_owner(key)) for key in keys), 0) + 1

    def _thin_out(self) -> None:
        """Keep the newest and the best. What was just saved is among the newest, so a good one always stays.

        What is older and has no manifest was abandoned: a part may have come after that.
        """
        keys = self.store.list()
        found = self._published(keys)
        if not found:
            return
        good = [checkpoint_id for checkpoint_id in found if checkpoint_id not in self._damaged]
        keep = {*good[: self._keep], *self._best(good)}
        owners = {owner for owner in map(_owner, keys) if _ID.fullmatch(owner) and _age(owner) <= _age(found[0])}
        self._leftovers.update(key for key in keys if _owner(key) in owners - keep)
        self._delete_leftovers()

    def _clean(self) -> None:
        self.store.clean()
        keys = self.store.list()
        published = set(self._published(keys))
        for key in keys:
            owner = _owner(key)
            if _ID.fullmatch(owner) and owner not in published:
                _log.info("removing %s: its checkpoint was never finished", key)
                self.store.delete(key)

    def _best(self, good: list[str]) -> list[str]:
        returns = {checkpoint_id: self._mean_return(checkpoint_id) for checkpoint_id in good}
        self._returns = returns
        known = {checkpoint_id: value for checkpoint_id, value in returns.items() if value is not None}
        return sorted(known, key=lambda checkpoint_id: known[checkpoint_id], reverse=True)[: self._keep_best]

    def _mean_return(self, checkpoint_id: str) -> float | None:
        if checkpoint_id in self._returns:
            return self._returns[checkpoint_id]
        try:
            value: float | None = self.manifest(checkpoint_id).get("mean_return")
        except Damaged:
            return None
        return value

    def _delete_leftovers(self) -> None:
        """Where a manifest cannot be deleted, its parts stay: it is a checkpoint still. The newest go first, so that an
        old one that cannot be deleted is in nobody's way.
        """
        kept: set[str] = set()
        newest_first = sorted(self._leftovers, key=lambda key: _age(_owner(key)), reverse=True)
        for key in sorted(newest_first, key=lambda key: not key.endswith("/manifest.json")):
            owner = _owner(key)
            if owner in kept:
                continue
            if len(kept) == _FAILURES:
                return
            try:
                self.store.delete(key)
            except StoreError as error:
                kept.add(owner)
                _log.warning("%s", error)
            else:
                self._leftovers.discard(key)


def _owner(key: str) -> str:
    """The checkpoint that a key belongs to, where it is one's."""
    return key.partition("/")[0]


def sequence(checkpoint_id: str) -> int:
    """Its number among the checkpoints of its location, from 1; 0 if it is no checkpoint's id."""
    match = _ID.fullmatch(checkpoint_id)
    return int(match.group(1)) if match else 0


def highest_fence(store: Store) -> int:
    """The highest fence of all checkpoints of a store, finished or not; 0 where there is none. Raises StoreError."""
    return max((_age(_owner(key))[0] for key in store.list()), default=0)


def _age(checkpoint_id: str) -> tuple[int, int]:
    """What orders checkpoints: a writer that was fenced off and did not know it yet wrote nothing newer."""
    match = _ID.fullmatch(checkpoint_id)
    return (int(match.group(3) or 0), int(match.group(1))) if match else (0, 0)
