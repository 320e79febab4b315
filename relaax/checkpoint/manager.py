"""Saving, restoring, verifying, copying and deleting the checkpoints of one location."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from relaax.checkpoint.array_file import Arrays, to_buffers
from relaax.checkpoint.checkpoint import (
    Checkpoint,
    check_size,
    decode_part,
    describe_part,
    manifest_key,
    not_finite,
    verify_part,
)
from relaax.checkpoint.evaluation import (
    Rank,
    evaluation_key,
    evaluations,
    in_progress,
    rank_of,
    ranked,
)
from relaax.checkpoint.lease import Lease, LeaseLost
from relaax.checkpoint.manifest import (
    ASIDE,
    FORMAT,
    Damaged,
    LaterFormat,
    age,
    decode_manifest,
    encode_manifest,
    is_id,
    milestones,
    owner,
    part_key,
    sequence,
    set_aside,
)
from relaax.checkpoint.store import MAX_VALUE_BYTES, Conflict, InvalidValue, NotFound, Store, StoreError

_log = logging.getLogger(__name__)

_MAX_LISTED = 20  # checkpoints that one error message describes


class NoUsableCheckpoint(StoreError):
    """There are checkpoints, but none can be used. The message has the reasons and the remedies."""


def no_usable_checkpoint_error(location: str, reasons: Mapping[str, str]) -> NoUsableCheckpoint:
    """Return the error for checkpoints that cannot be used. `reasons`: by checkpoint id."""
    named = "".join(f"\n  {checkpoint_id}: {why}" for checkpoint_id, why in list(reasons.items())[:_MAX_LISTED])
    more = f"\n  and {len(reasons) - _MAX_LISTED} more" if len(reasons) > _MAX_LISTED else ""
    return NoUsableCheckpoint(
        f"none of the {len(reasons)} checkpoints in {location} can be used, and none is deleted:{named}{more}\n"
        "Restore the damaged files from a copy, or start a new training at another checkpoint location. To start a new "
        f"training at this one, remove them: relaax checkpoints remove {location} {' '.join(reasons)}"
    )


def later_format_error(location: str, checkpoint_id: str, later: LaterFormat, ids: Sequence[str]) -> NoUsableCheckpoint:
    """Return the error to raise if a later version of RELAAX saved the newest checkpoint.

    `ids`: the checkpoints to remove, so that an older one can be used.
    """
    return NoUsableCheckpoint(
        f"checkpoint {checkpoint_id} in {location} cannot be read: {later}. Nothing is changed. Use that version, or "
        "another checkpoint location. To continue from an older checkpoint and lose this one, "
        f"remove it: relaax checkpoints remove {location} {' '.join(ids)}"
    )


_MAX_FAILURES = 3  # failed deletions after which the others are postponed, because each may take a minute

Parts = Collection[str] | Callable[[Mapping[str, Any]], Collection[str]]
"""Names of parts, or a function that selects them from a manifest."""


class Milestones(NamedTuple):
    """Checkpoints to keep: of the first ones at or after each multiple of `every` global steps, the newest `keep`."""

    keep: int
    every: int

    def among(self, ids: Iterable[str]) -> list[str]:
        """Return these checkpoints out of `ids`, newest first."""
        return milestones(ids, self.every)[: self.keep]


class CheckpointManager:
    """The checkpoints of one store. Used by one thread at a time, and by one writer at a time.

    A checkpoint's id is `SEQUENCE-GLOBALSTEP`, followed by `-fFENCE` if it was saved under a lease. The newest
    checkpoint is the last saved one of the highest fence, whatever its global step.

    A damaged checkpoint is set aside by a file next to its manifest: it is no longer counted, and only `remove` deletes
    it. Checkpoints that cannot be read are not deleted either.

    Every method may raise StoreError. With a `lease`, the methods that write raise LeaseLost if another process holds
    it. If `finite` is true, a checkpoint with numbers that are not finite is damaged.
    """

    def __init__(
        self,
        store: Store,
        keep: int = 5,
        keep_best: int = 1,
        lease: Lease | None = None,
        finite: bool = True,
        milestones: Milestones | None = None,
    ) -> None:
        """`keep`, `keep_best`, `milestones`: the newest, the best and other checkpoints that `save` does not delete."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self.store = store
        self.lease = lease
        self._keep = keep
        self._keep_best = keep_best
        self._finite = finite
        self._milestones = milestones
        self._damaged: dict[str, str] = {}  # ids of unusable checkpoints, with the reasons
        self._highest = 0  # highest sequence number that was seen or assigned
        self._leftovers: set[str] = set()  # keys that are not needed and could not be deleted
        self._abandoned: set[str] = set()  # ids of failed checkpoints that may have files left
        self._ranks: dict[str, Rank | None] = {}

    def published(self) -> list[str]:
        """Return the ids of the checkpoints with a manifest, newest first.

        Checkpoints that were set aside, or that this object has abandoned, are omitted.
        """
        return self._published(self.store.list())

    def aside(self) -> dict[str, str]:
        """Return the ids of the checkpoints that were set aside, newest first, with the reasons."""
        found = sorted(set_aside(self.store.list()), key=age, reverse=True)
        return {checkpoint_id: self._why_aside(checkpoint_id) for checkpoint_id in found}

    def manifest(self, checkpoint_id: str) -> dict[str, Any]:
        """Return the manifest of a checkpoint, without reading its parts. Raises Damaged."""
        with _missing_is_damage():
            return decode_manifest(self.store.get(manifest_key(checkpoint_id)), checkpoint_id)

    def load(self, checkpoint_id: str, parts: Parts | None = None) -> Checkpoint:
        """Load and verify one checkpoint, with the requested parts only (default: all). Raises Damaged."""
        manifest = self.manifest(checkpoint_id)
        described = manifest["parts"]
        names = list(described) if parts is None else parts(manifest) if callable(parts) else parts
        missing = [name for name in names if name not in described]
        if missing:
            raise Damaged(f"checkpoint {checkpoint_id} has no part {missing[0]!r}")
        return Checkpoint(checkpoint_id, {name: self.read_part(described[name]) for name in names}, manifest)

    def read_part(self, description: Mapping[str, Any]) -> Arrays:
        """Read and verify the part that a manifest describes. Raises Damaged."""
        key = description["key"]
        with _missing_is_damage():
            return decode_part(self.store.pieces(key), self.store.size(key), description, self._finite)

    def restore(
        self, parts: Parts | None = None, use: Callable[[Checkpoint], None] = lambda checkpoint: None
    ) -> Checkpoint | None:
        """Return the newest checkpoint whose requested parts verify and which `use` accepts.

        Returns None if there are no checkpoints. Newer checkpoints, which are damaged, are logged and set aside. `use`
        raises Damaged for a checkpoint that it cannot use. Raises NoUsableCheckpoint if there are checkpoints and none
        can be used, or if the newest undamaged one is of a later version; then the store is unchanged.
        """
        found = self.published()
        for checkpoint_id in found:
            if checkpoint_id in self._damaged:
                continue
            try:
                checkpoint = self.load(checkpoint_id, parts)
                use(checkpoint)
            except LaterFormat as later:
                ids = [one for one in found if age(one) >= age(checkpoint_id) or self._is_of_later_version(one)]
                raise later_format_error(self.store.location, checkpoint_id, later, ids) from None
            except Damaged as damage:
                self.mark_damaged(checkpoint_id, str(damage))
                _log.error("checkpoint %s in %s is damaged and skipped: %s", checkpoint_id, self.store.location, damage)
            else:
                for damaged in found[: found.index(checkpoint_id)]:
                    self._set_aside(damaged, self._damaged[damaged])
                return checkpoint
        reasons = {checkpoint_id: self._damaged[checkpoint_id] for checkpoint_id in found} | self.aside()
        if reasons:
            raise no_usable_checkpoint_error(self.store.location, reasons)
        return None

    def mark_damaged(self, checkpoint_id: str, why: str) -> None:
        """Mark a checkpoint as unusable in this object: it is not read again, and not counted as kept."""
        self._damaged[checkpoint_id] = why

    def remove(self, checkpoint_id: str) -> None:
        """Delete a checkpoint, the manifest first. Call it only if a person has requested it."""
        aside = f"{checkpoint_id}/{ASIDE}"
        keys = self.store.list(f"{checkpoint_id}/")
        for key in sorted(keys, key=lambda key: (key == aside, key != manifest_key(checkpoint_id))):
            self.store.delete(key)

    def clean(self) -> None:
        """Remove the files of checkpoints whose writers were killed. If the store fails, the failure is logged.

        Call it only while no process writes.
        """
        try:
            self.store.clean()
            keys = self.store.list()
            kept = {*self._published(keys), *set_aside(keys)}
            for key in keys:
                if is_id(owner(key)) and owner(key) not in kept:
                    _log.info("removing %s: its checkpoint was not completed", key)
                    self.store.delete(key)
        except StoreError as error:
            _log.warning("files of unfinished checkpoints are kept for now: %s", error)

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Write the parts, read them back, publish the manifest, and delete old checkpoints."""
        checkpoint_id = self.begin_checkpoint(global_step)
        try:
            described = {name: self.write_part(checkpoint_id, name, arrays) for name, arrays in parts.items()}
            full = self.publish(checkpoint_id, global_step, described, manifest)
        except Conflict:
            raise  # it belongs to another writer, so we must not delete it
        except (StoreError, LeaseLost):
            self.abandon(checkpoint_id, parts)
            raise
        self.delete_old()
        return Checkpoint(checkpoint_id, parts, full)

    def begin_checkpoint(self, global_step: int) -> str:
        """Return the id of a new checkpoint. No other checkpoint, not even an abandoned one, has its number."""
        if self.lease:
            self.lease.check_known()
        keys = self.store.list()
        self._leftovers.intersection_update(keys)  # keys that were not created need no deletion
        self._abandoned.intersection_update(map(owner, keys))
        self._highest = max(self._highest, *(sequence(owner(key)) for key in keys), 0) + 1
        return self._id(self._highest, global_step)

    def next_id(self, global_step: int) -> str:
        """Return the next id without a request to the store. Under a lease, no other server returns the same id."""
        return self._id(self._highest + 1, global_step)

    def write_part(self, checkpoint_id: str, name: str, arrays: Arrays) -> dict[str, Any]:
        """Write a part, verify it by reading it, and return its description. Each shard may write its part itself."""
        wrong = not_finite(arrays) if self._finite else None
        if wrong is not None:  # it could not be restored, and would cause the deletion of usable ones
            raise StoreError(f"{wrong}: training has diverged, so no checkpoint is saved")
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
        """Publish a checkpoint whose parts are all written. Return the complete manifest.

        `descriptions`: the results of `write_part`, by part name. `manifest["mean_return"]`, a number or None, decides
        which checkpoints are the best. This method deletes nothing, so that the caller's lock is held briefly: call
        `delete_old` afterwards, or `abandon` if publishing failed.
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
            encoded = _encode_checked(full)
            if self.lease:
                self.lease.check()
            self.store.put_if(manifest_key(checkpoint_id), encoded, None)
        except Conflict:
            raise  # it belongs to another writer, so we must not delete it
        except (StoreError, LeaseLost):
            self._add_to_leftovers(checkpoint_id, descriptions)
            raise
        return full

    def delete_old(self) -> None:
        """Delete old checkpoints. If the store fails, they are deleted after a later checkpoint."""
        try:
            self._delete_old()
        except StoreError as error:
            _log.warning("old checkpoints are kept for now: %s", error)

    def abandon(self, checkpoint_id: str, names: Iterable[str]) -> None:
        """Delete the files of a checkpoint that could not be saved. If the store fails, they are deleted later."""
        self._add_to_leftovers(checkpoint_id, names)
        self._delete_leftovers()

    def _add_to_leftovers(self, checkpoint_id: str, names: Iterable[str]) -> None:
        # The manifest may be stored, although the store reported a failure. It is ignored until it is deleted.
        self._abandoned.add(checkpoint_id)
        self._leftovers.update([manifest_key(checkpoint_id), *(part_key(checkpoint_id, name) for name in names)])

    def _id(self, number: int, global_step: int) -> str:
        return f"{number:08d}-{global_step}" + (f"-f{self.lease.fence}" if self.lease else "")

    def _published(self, keys: Collection[str]) -> list[str]:
        apart = self._abandoned | set_aside(keys)
        owners = {owner(key) for key in keys if key == manifest_key(owner(key))}
        found = sorted(filter(is_id, owners - apart), key=age, reverse=True)
        self._highest = max(self._highest, *(sequence(owner(key)) for key in keys), 0)
        return found

    def _set_aside(self, checkpoint_id: str, why: str) -> None:
        """Mark a checkpoint as damaged in the store. If the store fails, it is marked in this object only."""
        self.mark_damaged(checkpoint_id, why)
        note = json.dumps({"damaged": why, "time": time.time()}, indent=1).encode()
        try:
            self.store.put_if(f"{checkpoint_id}/{ASIDE}", note, None)
        except Conflict:
            return  # it is set aside already
        except StoreError as error:
            _log.warning("the damage of checkpoint %s could not be recorded: %s", checkpoint_id, error)
            return
        where = self.store.location
        _log.warning(
            "checkpoint %s is set aside by the file %s/%s/%s, and is kept until you remove it: relaax checkpoints "
            "remove %s %s",
            *(checkpoint_id, where, checkpoint_id, ASIDE, where, checkpoint_id),
        )

    def _why_aside(self, checkpoint_id: str) -> str:
        try:
            return ascii(json.loads(self.store.get(f"{checkpoint_id}/{ASIDE}"))["damaged"])[1:-1]
        except (NotFound, InvalidValue, ValueError, TypeError, KeyError, RecursionError):
            return f"{ASIDE} does not contain the reason"

    def _is_of_later_version(self, checkpoint_id: str) -> bool:
        try:
            self.manifest(checkpoint_id)
        except LaterFormat:
            return True
        except (Damaged, StoreError):
            pass
        return False

    def _delete_old(self) -> None:
        """Delete all but the newest, the best and the milestones.

        The last saved one is among the newest, so a usable one remains. If a checkpoint older than the newest has no
        manifest, it was abandoned. Its parts are deleted too: one of them may have been written after `abandon`.
        Checkpoints that are set aside or cannot be read are kept and not counted.
        """
        keys = self.store.list()
        found = self._published(keys)
        if not found:
            return
        ranks = self._read_ranks(found)
        good = [checkpoint_id for checkpoint_id in found if checkpoint_id in ranks]
        evaluated = evaluations(self.store, keys, good)
        best = ranked(ranks, evaluated)[: self._keep_best]
        best += self._milestones.among(good) if self._milestones else []
        keep = {*good[: self._keep], *best, *in_progress(evaluated), *(set(found) - set(good)), *set_aside(keys)}
        owners = {one for one in map(owner, keys) if is_id(one) and age(one) <= age(found[0])}
        self._leftovers.update(key for key in keys if owner(key) in owners - keep)
        self._delete_leftovers()

    def _read_ranks(self, found: Iterable[str]) -> dict[str, Rank | None]:
        """Return the ranks of the readable checkpoints by mean return. Damaged ones are set aside."""
        before, self._ranks = self._ranks, {}
        for checkpoint_id in found:
            if checkpoint_id in self._damaged:
                continue
            try:
                if checkpoint_id in before:
                    self._ranks[checkpoint_id] = before[checkpoint_id]
                else:
                    self._ranks[checkpoint_id] = rank_of(self.manifest(checkpoint_id))
            except LaterFormat as later:
                self.mark_damaged(checkpoint_id, str(later))
                _log.warning("checkpoint %s in %s is kept and not used: %s", checkpoint_id, self.store.location, later)
            except Damaged as damage:
                self._set_aside(checkpoint_id, str(damage))
        return self._ranks

    def _delete_leftovers(self) -> None:
        """Delete leftovers, newest first, and skip failures. Parts are kept while their manifest exists."""
        kept: set[str] = set()
        newest_first = sorted(self._leftovers, key=lambda key: age(owner(key)), reverse=True)
        for key in sorted(newest_first, key=lambda key: not key.endswith("/manifest.json")):
            if owner(key) in kept:
                continue
            if len(kept) == _MAX_FAILURES:
                return
            try:
                self.store.delete(key)
            except StoreError as error:
                kept.add(owner(key))
                _log.warning("%s", error)
            else:
                self._leftovers.discard(key)


def _encode_checked(manifest: Mapping[str, Any]) -> bytes:
    """Encode the manifest and decode it again. Raises StoreError if that fails, so that it is not published."""
    try:
        encoded = encode_manifest(manifest)
        if len(encoded) > MAX_VALUE_BYTES:
            raise StoreError(f"the manifest would have {len(encoded)} bytes; the limit is {MAX_VALUE_BYTES}")
        decode_manifest(encoded, manifest["id"])
    except Damaged as damage:
        raise StoreError(f"the manifest could not be decoded again: {damage}") from None
    return encoded


Advance = Callable[[int], None]
"""Called with the number of bytes that have been read or written."""


def verify(store: Store, checkpoint_id: str, advance: Advance) -> None:
    """Verify all parts of a checkpoint against its manifest. Raises Damaged."""
    for description in _read(store, checkpoint_id)[1]["parts"].values():
        with _missing_is_damage():
            _check_size(store, description)
            verify_part(_counted(store.pieces(description["key"]), advance), description)


def copy(source: Store, target: Store, checkpoint_id: str, lease: Lease, advance: Advance = lambda count: None) -> None:
    """Copy a checkpoint to another store under that store's lease. Parts are verified before the manifest is written.

    Raises Damaged, StoreError and LeaseLost. In these cases the copy is deleted if the store allows it.
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
        with contextlib.suppress(NotFound, InvalidValue):
            target.put(evaluation_key(checkpoint_id), source.get(evaluation_key(checkpoint_id)))
            written.append(evaluation_key(checkpoint_id))
        written.insert(0, key)  # it may be stored although the store fails; it is deleted first
        target.put_if(key, value, None)
    except Conflict:
        raise  # it belongs to another writer, so we must not delete it
    except BaseException:
        with contextlib.suppress(StoreError):  # if the manifest cannot be deleted, its parts are kept
            for one in written:
                target.delete(one)
        raise


def _read(store: Store, checkpoint_id: str) -> tuple[bytes, dict[str, Any]]:
    """Return the bytes of the manifest, and its content."""
    with _missing_is_damage():
        value = store.get(manifest_key(checkpoint_id))
    try:
        return value, decode_manifest(value, checkpoint_id)
    except Damaged as damage:
        raise type(damage)(f"{checkpoint_id}: {damage}") from None


def _check_size(store: Store, description: Mapping[str, Any]) -> None:
    """Check a part's size before reading it, because a sparse file may have any length."""
    check_size(store.size(description["key"]), description)


def _counted(pieces: Iterator[bytes], advance: Advance) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        advance(len(piece))


@contextlib.contextmanager
def _missing_is_damage() -> Iterator[None]:
    try:
        yield
    except (NotFound, InvalidValue) as error:
        raise Damaged(str(error)) from None
