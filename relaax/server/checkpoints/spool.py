"""Local copies of last checkpoints that their store did not accept, delivered at the next start."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relaax.checkpoint import Arrays, CheckpointManager, Damaged, LocalStore, StoreError
from relaax.checkpoint.manager import copy
from relaax.checkpoint.manifest import age
from relaax.configuration.key_types import expand_home

_log = logging.getLogger(__name__)


def default_folder() -> Path:
    """Return the folder of the spool in the user's state folder (XDG Base Directory). Raises UnknownHomeError."""
    given = os.environ.get("XDG_STATE_HOME", "")
    state = given if os.path.isabs(given) else expand_home("~/.local/state")
    return Path(state, "relaax", "spool")


class Spool:
    """The local copies for one location of checkpoints, in a folder below `folder`. A process keeps at most one.

    `endpoint` distinguishes buckets of the same name in different stores.
    """

    def __init__(self, folder: Path, manager: CheckpointManager, endpoint: str | None) -> None:
        self._manager = manager
        where = manager.store.location
        identity = hashlib.sha256(f"{endpoint or ''} {where}".encode()).hexdigest()[:12]
        name = re.sub(r"[^A-Za-z0-9]+", "-", where.rpartition("://")[2]).strip("-")[:60]
        self.folder = folder / f"{name}-{identity}"
        self._copies = CheckpointManager(LocalStore(self.folder))
        self._kept: str | None = None

    @property
    def has_copy(self) -> bool:
        """Whether this process has written a copy."""
        return self._kept is not None

    def write_copy(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> None:
        """Write a copy, replacing an earlier one of this process. Failures are logged."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            before, checkpoint_id = self._kept, self._manager.next_id(global_step)
            if checkpoint_id == before:
                return
            described = {name: self._copies.write_part(checkpoint_id, name, arrays) for name, arrays in parts.items()}
            fence = {"fence": self._manager.lease.fence} if self._manager.lease else {}
            self._copies.publish(checkpoint_id, global_step, described, {**manifest, **fence})
            self._kept = checkpoint_id
            if before is not None:
                self._copies.remove(before)
        except (StoreError, OSError) as error:
            _log.error("the copy of the last checkpoint could not be written to %s either: %s", self.folder, error)
            return
        _log.warning(
            "the last checkpoint, at global step %d, is kept in %s because %s did not accept it: the next start "
            "of this server on this machine uploads it; to do it yourself: relaax checkpoints copy %s %s",
            *(global_step, self.folder, self._manager.store.location, self.folder, self._manager.store.location),
        )

    def remove_copy(self) -> None:
        """Remove the copy, because the store has the checkpoint."""
        if self._kept is not None:
            self._remove(self._kept)
            self._kept = None

    def deliver(self) -> None:
        """Deliver the copy of an earlier process to the store, unless the store has a newer checkpoint.

        A copy that is older or damaged is kept and logged. Raises StoreError.
        """
        store = self._manager.store
        for checkpoint_id in self._copies.published()[:1] if self.folder.is_dir() else []:
            there = self._manager.published()
            if checkpoint_id in there:
                self._remove(checkpoint_id)
            elif there and age(there[0]) > age(checkpoint_id):
                _log.warning(
                    "checkpoint %s in %s could not be uploaded to %s when it was saved, and is not used: another "
                    "server has saved %s there since. Copy it to keep it, or remove the folder",
                    *(checkpoint_id, self.folder, store.location, there[0]),
                )
            else:
                self._upload(checkpoint_id)

    def _upload(self, checkpoint_id: str) -> None:
        lease, store = self._manager.lease, self._manager.store
        assert lease is not None, "only the holder of the lease delivers checkpoints"
        try:
            copy(self._copies.store, store, checkpoint_id, lease)
        except Damaged as damage:
            _log.error("checkpoint %s in %s is damaged and is not used: %s", checkpoint_id, self.folder, damage)
        else:
            _log.info(
                "checkpoint %s, which was kept in %s, is uploaded to %s", checkpoint_id, self.folder, store.location
            )
            self._remove(checkpoint_id)

    def _remove(self, checkpoint_id: str) -> None:
        try:
            self._copies.remove(checkpoint_id)
            if not self._copies.store.list():
                shutil.rmtree(self.folder, ignore_errors=True)
        except StoreError as error:
            _log.warning("%s", error)
