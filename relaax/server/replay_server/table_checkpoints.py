"""Checkpoints of a replay server's tables, written while it serves and restored at its start."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from google.protobuf import json_format

from relaax import __version__
from relaax.checkpoint import (
    Arrays,
    Checkpoint,
    CheckpointManager,
    Conflict,
    Damaged,
    Lease,
    LeaseLost,
    Store,
    StoreError,
    sequence,
)
from relaax.configuration import ReplayServerSection
from relaax.replay import replay_pb2 as pb
from relaax.replay.wire import declaration_from_message, declaration_to_message
from relaax.server.checkpoints.checkpointing import (
    LAST_ATTEMPTS,
    LAST_SECONDS,
    Checkpointer,
    CheckpointLate,
    ModelState,
    Saved,
)
from relaax.server.checkpoints.storage import checkpoint_store, open_leased, retry_while_unavailable
from relaax.server.command.termination import EndRequests
from relaax.server.replay_server.served_table import ServedTable
from relaax.server.replay_server.service import ReplayService
from relaax.server.service_errors import MemoryExhausted

_log = logging.getLogger(__name__)
_CHECKPOINT = re.compile(r"shard-\d+-of-(\d+)/[^/]+/.*")
_LIMITER_PREFIX = "limiter/"
MAX_INCARNATIONS = 16
"""Maximum number of incarnations of a table in a checkpoint: writers of these continue after a restart."""


class TableCheckpoints:
    """Checkpoints of the tables of `service`: saved every `interval` seconds and at the end, and restored at the start.

    A checkpoint has one part with the small arrays of each table, and parts of bounded size with its items and frames.
    Each part is copied and written while the table is in use. If the store fails, the checkpoint is retried after an
    interval, and the server continues. The previous checkpoint is deleted when the new one is complete.
    """

    def __init__(self, service: ReplayService, manager: CheckpointManager, interval: float) -> None:
        self._service = service
        self._manager = manager
        self._interval = interval
        self._checkpointer: Checkpointer | None = None
        self._is_ending = threading.Event()
        self.saved: Saved | None = None
        """The newest checkpoint."""
        self.bytes = 0
        """Size of the newest checkpoint in bytes."""
        self.seconds: float | None = None
        """Time to write the newest checkpoint; None if this process did not write it."""

    @property
    def store(self) -> Store:
        """The store that keeps the checkpoints."""
        return self._manager.store

    @property
    def lease(self) -> Lease | None:
        """The lease on the store."""
        return self._manager.lease

    @property
    def failures(self) -> int:
        """Number of failed attempts to save."""
        return self._checkpointer.failures if self._checkpointer else 0

    def restore(self, ends: EndRequests) -> None:
        """Restore the newest usable checkpoint, before the server accepts requests.

        Raises StoreError, NoUsableCheckpoint if all checkpoints are damaged, MemoryExhausted if the tables exceed the
        memory limit, and LeaseWaitInterrupted.
        """
        found = retry_while_unavailable(lambda: self._manager.restore((), self._restore_checkpoint), ends)
        made = 0
        if found is not None:
            made = sequence(found.checkpoint_id)
            self._record_size(found)
            location = f"{self.store.location}/{found.checkpoint_id}"
            self.saved = Saved(location, found.manifest["global_step"], found.manifest["time"])
            items = sum(table.size for table in self._service.tables())
            _log.info("restored %d replay items from %s", items, location)
        self._manager.clean()
        self._checkpointer = Checkpointer(
            self,
            self._state,
            self._interval,
            self._on_saved,
            retry=self._interval,
            mark=self._mark,
            saved=self._mark(),
            made=made,
            counted="insert",
        )

    def start(self) -> None:
        """Start to save periodically."""
        assert self._checkpointer is not None, "call `restore` first"
        self._checkpointer.start()

    def finish(self) -> bool:
        """Save a last checkpoint, after the server has stopped serving. Return whether it was saved."""
        assert self._checkpointer is not None, "call `restore` first"
        self._is_ending.set()  # cancels a checkpoint in progress, which would be outdated
        self._checkpointer.stop()
        self._is_ending.clear()
        return self._checkpointer.save(LAST_SECONDS, last=True, attempts=LAST_ATTEMPTS)

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Write a checkpoint of all tables. `parts` is empty, because the tables are copied here, one by one.

        Raises StoreError, LeaseLost, and CheckpointLate if the server is stopping.
        """
        begun = time.monotonic()
        checkpoint_id = self._manager.begin_checkpoint(global_step)
        described: dict[str, dict[str, Any]] = {}
        names: list[str] = []

        def write(name: str, arrays: Arrays) -> None:
            if self._is_ending.is_set():
                raise CheckpointLate("the replay server is stopping and writes its last checkpoint")
            names.append(name)
            described[name] = self._manager.write_part(checkpoint_id, name, arrays)

        try:
            tables = [
                _write_table(table, f"table-{number}", write) for number, table in enumerate(self._service.tables())
            ]
            own = {"shard": self._service.shard, "shards": self._service.shards, "tables": tables}
            facts = {**manifest, "versions": {"relaax": __version__}, "replay": own}
            full = self._manager.publish(checkpoint_id, global_step, described, facts)
        except Conflict:
            raise  # the checkpoint belongs to another writer and must not be deleted
        except (StoreError, LeaseLost, CheckpointLate):
            self._manager.abandon(checkpoint_id, names)
            raise
        self._manager.delete_old()
        self.seconds = time.monotonic() - begun
        checkpoint = Checkpoint(checkpoint_id, {}, full)
        self._record_size(checkpoint)
        return checkpoint

    def _mark(self) -> object:
        totals = [(table.incarnation, table.statistics) for table in self._service.tables()]
        return tuple((name, statistics.inserts, statistics.samples) for name, statistics in totals)

    def _state(self) -> ModelState:
        inserts = sum(table.statistics.inserts for table in self._service.tables())
        return ModelState(inserts, {}, {}, self._mark())

    def _on_saved(self, saved: Saved) -> None:
        self.saved = saved

    def _record_size(self, checkpoint: Checkpoint) -> None:
        self.bytes = sum(part["bytes"] for part in checkpoint.manifest["parts"].values())

    def _restore_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Restore the tables of a checkpoint, part by part. Raises Damaged."""
        self._service.clear()
        try:
            for described in checkpoint.manifest["replay"]["tables"]:
                self._restore_table(described, checkpoint.manifest["parts"])
        except (ValueError, LookupError, TypeError, AttributeError, json_format.Error) as error:
            self._service.clear()
            why = error if isinstance(error, ValueError) else repr(error)
            raise Damaged(f"cannot read its replay tables: {why}") from None

    def _restore_table(self, described: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        message = json_format.ParseDict(described["declaration"], pb.TableDescription())
        declaration, session = declaration_from_message(message), str(described["session"])
        try:
            table = self._service.create_restored(declaration, session, self.store.location)
        except MemoryExhausted as error:
            if not session:
                raise
            _log.warning("did not restore the replay table of session %s: %s", session, error)
            return
        head = self._manager.read_part(parts[described["part"]])
        limiter_state = {
            name.removeprefix(_LIMITER_PREFIX): array
            for name, array in head.items()
            if name.startswith(_LIMITER_PREFIX)
        }
        pieces = (
            self._manager.read_part(parts[_piece_name(described["part"], number)])
            for number in range(1, described["pieces"] + 1)
        )
        table.restore(head, pieces, limiter_state, [str(incarnation) for incarnation in described["lives"]])


def _write_table(table: ServedTable, part: str, write: Callable[[str, Arrays], None]) -> dict[str, Any]:
    """Write a table; return the manifest's description of it."""
    copy, limiter_state = table.copy()
    count = 0
    try:
        for count, piece in enumerate(copy.pieces(), 1):
            write(_piece_name(part, count), piece)
        write(part, {**copy.head(), **{_LIMITER_PREFIX + name: array for name, array in limiter_state.items()}})
    finally:
        copy.close()
    return {
        "declaration": json_format.MessageToDict(declaration_to_message(table.declaration)),
        "session": table.session,
        "lives": [*table.earlier_incarnations, table.incarnation][-MAX_INCARNATIONS:],
        "part": part,
        "pieces": count,
    }


def _piece_name(part: str, number: int) -> str:
    return f"{part}-{number:05d}"


def open_table_checkpoints(
    settings: ReplayServerSection, service: ReplayService, ends: EndRequests, closing: ExitStack
) -> TableCheckpoints | None:
    """Restore the tables, and return their checkpoints; None if no location is configured.

    Each shard has a folder of its own at the location, and a lease on it, which `closing` releases. Raises StoreError,
    ConfigurationError, NoUsableCheckpoint, MemoryExhausted and LeaseWaitInterrupted.
    """
    store = checkpoint_store(settings)
    if store is None:
        return None
    retry_while_unavailable(lambda: _check_shard_count(store, service.shards), ends)
    opened = open_leased(_shard_settings(settings, f"shard-{service.shard}-of-{service.shards}"), ends, closing)
    assert opened is not None, "a location is configured"
    own, lease = opened
    manager = CheckpointManager(own, keep=1, keep_best=0, lease=lease, finite=False)
    checkpoints = TableCheckpoints(service, manager, settings.checkpoint_interval)
    checkpoints.restore(ends)
    return checkpoints


def _shard_settings(settings: ReplayServerSection, name: str) -> ReplayServerSection:
    """Return settings with the location of a shard."""
    if settings.checkpoint_aws_s3 is not None:
        bucket, key = settings.checkpoint_aws_s3
        return settings.model_copy(update={"checkpoint_aws_s3": [bucket, f"{key}/{name}"]})
    return settings.model_copy(update={"checkpoint_dir": f"{settings.checkpoint_dir}/{name}"})


def _check_shard_count(store: Store, shards: int) -> None:
    """Raise StoreError if the store has checkpoints of another number of shards."""
    found = {match.group(1) for key in store.list("shard-") if (match := _CHECKPOINT.fullmatch(key))}
    others = sorted(found - {str(shards)}, key=int)
    if others:
        raise StoreError(
            f"{store.location} has checkpoints of {others[0]} replay servers, and this is one of {shards}: set "
            f"relaax-replay-server.shards to {others[0]}, or use another checkpoint location; to start with an "
            f"empty memory, remove shard-*-of-{others[0]} there"
        )
