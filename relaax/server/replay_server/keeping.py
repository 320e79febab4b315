"""Keep the tables of a replay server over its restarts, in checkpoints that are written while it serves."""

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
from relaax.server.replay_server.held_table import HeldTable
from relaax.server.replay_server.service import ReplayService
from relaax.server.service_errors import MemoryExhausted

_log = logging.getLogger(__name__)
_CHECKPOINT = re.compile(r"shard-\d+-of-(\d+)/[^/]+/.*")
_ACCOUNTS = "limiter/"
MOST_LIVES = 16
"""Former lives of a table whose writers may go on."""


class Keeping:
    """Saves the tables of `service` every `interval` seconds and at the end, and restores them at the start.

    A checkpoint has a part with the small things of each table, and its items and frames in parts of a bounded size,
    each of which is copied and written while the table goes on. A store that fails makes it late, and is tried again
    after an interval: nothing else waits for it. The one before goes once a new one is whole.
    """

    def __init__(self, service: ReplayService, manager: CheckpointManager, interval: float) -> None:
        self._service = service
        self._manager = manager
        self._interval = interval
        self._checkpointer: Checkpointer | None = None
        self._hurry = threading.Event()
        self.saved: Saved | None = None
        """The newest checkpoint."""
        self.bytes = 0
        """Its length."""
        self.seconds: float | None = None
        """What it took to write it, if this process did."""

    @property
    def store(self) -> Store:
        """The store that keeps the checkpoints."""
        return self._manager.store

    @property
    def lease(self) -> Lease | None:
        """The lease on it."""
        return self._manager.lease

    @property
    def failures(self) -> int:
        """Attempts to save that the store refused."""
        return self._checkpointer.failures if self._checkpointer else 0

    def restore(self, ends: EndRequests) -> None:
        """Restore what was kept, before anybody is served.

        Raises StoreError, NoUsableCheckpoint if all of it is damaged, MemoryExhausted if it takes more than tables
        may, and LeaseWaitInterrupted.
        """
        found = retry_while_unavailable(lambda: self._manager.restore((), self._use), ends)
        made = 0
        if found is not None:
            made = sequence(found.checkpoint_id)
            self._note(found)
            location = f"{self.store.location}/{found.checkpoint_id}"
            self.saved = Saved(location, found.manifest["global_step"], found.manifest["time"])
            items = sum(held.size for held in self._service.tables())
            _log.info("going on with %d items from %s", items, location)
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
        """Begin to save."""
        assert self._checkpointer is not None, "what was kept is restored first"
        self._checkpointer.start()

    def finish(self) -> bool:
        """Save what there is when nobody is served any more. Return whether it is safe."""
        assert self._checkpointer is not None, "what was kept is restored first"
        self._hurry.set()  # what is being written now would be old already
        self._checkpointer.stop()
        self._hurry.clear()
        return self._checkpointer.save(LAST_SECONDS, last=True, attempts=LAST_ATTEMPTS)

    def save(self, global_step: int, parts: Mapping[str, Arrays], manifest: Mapping[str, Any]) -> Checkpoint:
        """Write a checkpoint of all tables: they are copied here, so that there are no `parts` before.

        Raises StoreError, LeaseLost, and CheckpointLate if the server is about to end.
        """
        begun = time.monotonic()
        checkpoint_id = self._manager.begin_checkpoint(global_step)
        described: dict[str, dict[str, Any]] = {}
        names: list[str] = []

        def write(name: str, arrays: Arrays) -> None:
            if self._hurry.is_set():
                raise CheckpointLate("it gives way to the last one")
            names.append(name)
            described[name] = self._manager.write_part(checkpoint_id, name, arrays)

        try:
            tables = [_write(held, f"table-{number}", write) for number, held in enumerate(self._service.tables())]
            own = {"shard": self._service.shard, "shards": self._service.shards, "tables": tables}
            facts = {**manifest, "versions": {"relaax": __version__}, "replay": own}
            full = self._manager.publish(checkpoint_id, global_step, described, facts)
        except Conflict:
            raise  # another writer's: it is there, and none of ours to delete
        except (StoreError, LeaseLost, CheckpointLate):
            self._manager.abandon(checkpoint_id, names)
            raise
        self._manager.delete_old()
        self.seconds = time.monotonic() - begun
        made = Checkpoint(checkpoint_id, {}, full)
        self._note(made)
        return made

    def _mark(self) -> object:
        totals = [(held.incarnation, held.tallies) for held in self._service.tables()]
        return tuple((name, tallies.inserts, tallies.samples) for name, tallies in totals)

    def _state(self) -> ModelState:
        inserts = sum(held.tallies.inserts for held in self._service.tables())
        return ModelState(inserts, {}, {}, self._mark())

    def _on_saved(self, saved: Saved) -> None:
        self.saved = saved

    def _note(self, checkpoint: Checkpoint) -> None:
        self.bytes = sum(part["bytes"] for part in checkpoint.manifest["parts"].values())

    def _use(self, checkpoint: Checkpoint) -> None:
        """Restore the tables of a checkpoint, part by part. Raises Damaged."""
        self._service.clear()
        try:
            for described in checkpoint.manifest["replay"]["tables"]:
                self._restore_table(described, checkpoint.manifest["parts"])
        except (ValueError, LookupError, TypeError, AttributeError, json_format.Error) as error:
            self._service.clear()
            why = error if isinstance(error, ValueError) else repr(error)
            raise Damaged(f"its tables cannot be read: {why}") from None

    def _restore_table(self, described: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
        message = json_format.ParseDict(described["declaration"], pb.TableDescription())
        declaration, session = declaration_from_message(message), str(described["session"])
        try:
            held = self._service.make_for(declaration, session, self.store.location)
        except MemoryExhausted as error:
            if not session:
                raise
            _log.warning("the table of session %s is left out: %s", session, error)
            return
        head = self._manager.read_part(parts[described["part"]])
        accounts = {name.removeprefix(_ACCOUNTS): array for name, array in head.items() if name.startswith(_ACCOUNTS)}
        pieces = (
            self._manager.read_part(parts[_piece(described["part"], number)])
            for number in range(1, described["pieces"] + 1)
        )
        held.restore(head, pieces, accounts, [str(life) for life in described["lives"]])


def _write(held: HeldTable, part: str, write: Callable[[str, Arrays], None]) -> dict[str, Any]:
    """Write a table; return the manifest's description of it."""
    copy, accounts = held.copy()
    count = 0
    try:
        for count, piece in enumerate(copy.pieces(), 1):
            write(_piece(part, count), piece)
        write(part, {**copy.head(), **{_ACCOUNTS + name: array for name, array in accounts.items()}})
    finally:
        copy.close()
    return {
        "declaration": json_format.MessageToDict(declaration_to_message(held.declaration)),
        "session": held.session,
        "lives": [*held.earlier, held.incarnation][-MOST_LIVES:],
        "part": part,
        "pieces": count,
    }


def _piece(part: str, number: int) -> str:
    return f"{part}-{number:05d}"


def open_keeping(
    settings: ReplayServerSection, service: ReplayService, ends: EndRequests, closing: ExitStack
) -> Keeping | None:
    """Return what keeps the tables, restored from what was kept; None if no location is configured.

    Each shard has its own place there, and the lease on it, which `closing` gives back. Raises StoreError,
    ConfigurationError, NoUsableCheckpoint, MemoryExhausted and LeaseWaitInterrupted.
    """
    store = checkpoint_store(settings)
    if store is None:
        return None
    retry_while_unavailable(lambda: _require_as_many(store, service.shards), ends)
    opened = open_leased(_of_shard(settings, f"shard-{service.shard}-of-{service.shards}"), ends, closing)
    assert opened is not None, "a location is configured"
    own, lease = opened
    manager = CheckpointManager(own, keep=1, keep_best=0, lease=lease, finite=False)
    keeping = Keeping(service, manager, settings.checkpoint_interval)
    keeping.restore(ends)
    return keeping


def _of_shard(settings: ReplayServerSection, name: str) -> ReplayServerSection:
    """Return settings whose location is that of a shard."""
    if settings.checkpoint_aws_s3 is not None:
        bucket, key = settings.checkpoint_aws_s3
        return settings.model_copy(update={"checkpoint_aws_s3": [bucket, f"{key}/{name}"]})
    return settings.model_copy(update={"checkpoint_dir": f"{settings.checkpoint_dir}/{name}"})


def _require_as_many(store: Store, shards: int) -> None:
    """Raise StoreError if another number of shards has kept its memory there."""
    found = {match.group(1) for key in store.list("shard-") if (match := _CHECKPOINT.fullmatch(key))}
    others = sorted(found - {str(shards)}, key=int)
    if others:
        raise StoreError(
            f"{store.location} keeps the memory of {others[0]} replay servers, and this is one of {shards}: set "
            f"relaax-replay-server.shards to {others[0]}, or use another checkpoint location; or, to begin with an "
            f"empty memory, remove shard-*-of-{others[0]} there"
        )
