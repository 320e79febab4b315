"""Saving, restoring and thinning out the checkpoints of one location."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from relaax.checkpoint.checkpoint import (
    FORMAT,
    Arrays,
    Checkpoint,
    Damaged,
    decode_manifest,
    decode_part,
    describe_part,
    encode_manifest,
    encode_part,
    manifest_key,
    part_key,
)
from relaax.checkpoint.store import NotFound, Store, StoreError

_log = logging.getLogger(__name__)
_ID = re.compile(r"(\d{8,})-(\d+)")


class CheckpointManager:
    """The checkpoints of one store. Used by one thread at a time, and by one writer at a time.

    Every method may raise StoreError. Newest means saved last, whatever its global step.
    """

    def __init__(self, store: Store, keep: int = 5, keep_best: int = 1) -> None:
        if keep < 1:
            raise ValueError(f"at least one checkpoint must be kept, not {keep}")
        self.store = store
        self._keep = keep
        self._keep_best = keep_best
        self._damaged: set[str] = set()

    def published(self) -> list[str]:
        """Ids of the checkpoints that have a manifest, the newest first."""
        ids = (key.partition("/")[0] for key in self.store.list() if key.endswith("/manifest.json"))
        return sorted((i for i in ids if _ID.fullmatch(i)), key=_sequence, reverse=True)

    def manifest(self, checkpoint_id: str) -> dict[str, Any]:
        """What one checkpoint says of itself; its parts are not read. Raises Damaged."""
        try:
            return decode_manifest(self.store.get(manifest_key(checkpoint_id)))
        except NotFound as error:
            raise Damaged(str(error)) from None

    def load(self, checkpoint_id: str) -> Checkpoint:
        """One checkpoint, verified. Raises Damaged."""
        manifest = self.manifest(checkpoint_id)
        try:
            parts = {
                name: decode_part(self.store.get(description["key"]), description)
                for name, description in manifest["parts"].items()
            }
        except NotFound as error:
            raise Damaged(str(error)) from None
        return Checkpoint(checkpoint_id, parts, manifest)

    def restore(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; None where there is none. The log names those that are damaged."""
        found = self.published()
        for checkpoint_id in found:
            try:
                return self.load(checkpoint_id)
            except Damaged as damage:
                self._damaged.add(checkpoint_id)
                _log.error("checkpoint %s in %s is damaged and skipped: %s", checkpoint_id, self.store.location, damage)
        if found:
            _log.error("none of the %d checkpoints in %s can be used", len(found), self.store.location)
        return None

    def clean(self) -> None:
        """Remove what writers left that were killed before they published. Called only while nobody writes."""
        self.store.clean()
        keys = self.store.list()
        published = set(self.published())
        for key in keys:
            owner = key.partition("/")[0]
            if _ID.fullmatch(owner) and owner not in published:
                _log.info("removing %s: its checkpoint was never finished", key)
                self.store.delete(key)

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Write the parts, read them back, publish the manifest, and delete what is kept no longer.

        `manifest["mean_return"]`, a number or None, decides which checkpoints are the best.
        """
        checkpoint_id = f"{self._next_sequence():08d}-{global_step}"
        described: dict[str, dict[str, Any]] = {}
        try:
            for name, arrays in parts.items():
                key = part_key(checkpoint_id, name)
                data = encode_part(arrays)
                described[name] = describe_part(key, data)
                self.store.put(key, data)
                decode_part(self.store.get(key), described[name])
            full = {
                **manifest,
                "format": FORMAT,
                "id": checkpoint_id,
                "global_step": global_step,
                "time": time.time(),
                "parts": described,
            }
            self.store.put(manifest_key(checkpoint_id), encode_manifest(full))
        except (Damaged, StoreError) as error:
            # It may be published although the store failed: the manifest goes first.
            self._delete([manifest_key(checkpoint_id), *(part_key(checkpoint_id, name) for name in described)])
            raise StoreError(str(error)) from error
        try:
            self._thin_out()
        except StoreError as error:
            _log.warning("old checkpoints are kept for now: %s", error)
        return Checkpoint(checkpoint_id, parts, full)

    def _next_sequence(self) -> int:
        owners = (key.partition("/")[0] for key in self.store.list())
        return max((_sequence(owner) for owner in owners if _ID.fullmatch(owner)), default=0) + 1

    def _thin_out(self) -> None:
        """Keep the newest and the best. What was just saved is among the newest, so a good one always stays."""
        found = self.published()
        good = [checkpoint_id for checkpoint_id in found if checkpoint_id not in self._damaged]
        keep = {*good[: self._keep], *self._best(good)}
        for checkpoint_id in found:
            if checkpoint_id not in keep:
                # The manifest goes first: without it, the parts are no checkpoint.
                keys = sorted(self.store.list(f"{checkpoint_id}/"), key=lambda key: not key.endswith("/manifest.json"))
                self._delete(keys)

    def _best(self, good: list[str]) -> list[str]:
        returns: dict[str, float] = {}
        for checkpoint_id in good:
            try:
                mean_return = self.manifest(checkpoint_id).get("mean_return")
            except Damaged:
                continue
            if mean_return is not None:
                returns[checkpoint_id] = mean_return
        return sorted(returns, key=lambda checkpoint_id: returns[checkpoint_id], reverse=True)[: self._keep_best]

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                self.store.delete(key)
            except StoreError as error:
                _log.warning("%s", error)


def _sequence(checkpoint_id: str) -> int:
    match = _ID.fullmatch(checkpoint_id)
    return int(match.group(1)) if match else 0
