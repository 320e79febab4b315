"""Items with serial numbers, to find items that are in a replay memory twice."""

from __future__ import annotations

import os
import random
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.client import ReplayClient
from relaax.replay.client.shards import ShardLink
from relaax.replay.interfaces import Insertion, ReplayMemory, ReplayTraffic, ReplayWriter, Sampled
from relaax.replay.spec import Field, TableDeclaration

from .unanswered import Unanswered

SERIAL = "serial"
WRITERS = 32
"""Number of bits of a serial number that count a writer's items."""
SENT, SEEN = "sent-", "seen-"
LOST = 0.05
"""Fraction of the answers to inserts that are lost."""
AWAY_SECONDS = 3.0
_FORM = np.dtype([("serial", "<i8"), ("key", "<u8"), ("life", "<u8")])


def with_serials(declaration: TableDeclaration) -> TableDeclaration:
    """Return the table with a column for serial numbers."""
    spec = declaration.spec
    return replace(declaration, spec=replace(spec, fields={**spec.fields, SERIAL: Field("int64")}))


class NumberedItems(ReplayMemory):
    """A replay memory whose items are numbered.

    A writer records how many items it has sent; a reader records the place of each sampled item. If `memory` is a
    client of replay servers, some answers to its inserts are lost. `slot`: a unique number of this process.
    """

    def __init__(self, memory: ReplayMemory, folder: Path, slot: int) -> None:
        self._memory = memory
        for link in memory._group.links if isinstance(memory, ReplayClient) else ():
            _LossyInsert(link, slot)
        self._sent = 0
        self._slot = slot
        self._writers = [_NumberedWriter(self, writer) for writer in memory.writers]
        self._seen: set[tuple[int, int, int]] = set()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._sent_file, self._seen_file = (os.open(folder / f"{name}{slot}", flags, 0o666) for name in (SENT, SEEN))

    @property
    def writers(self) -> Sequence[ReplayWriter]:
        return self._writers

    @property
    def traffic(self) -> ReplayTraffic:
        return self._memory.traffic

    def numbers(self, count: int) -> npt.NDArray[np.int64]:
        """Return the numbers of items that are about to be sent. They are recorded first."""
        first = self._sent
        self._sent += count
        os.pwrite(self._sent_file, struct.pack("<q", self._sent), 0)
        return np.arange(first, self._sent, dtype=np.int64) + (self._slot << WRITERS)

    def see(self, sampled: Sampled) -> None:
        """Record the places of the sampled items."""
        lives = {place: zlib.crc32(incarnation.encode()) for place, incarnation in sampled.incarnations.items()}
        places = [lives[place] for place in sampled.places.tolist()]
        found = set(zip(sampled.columns[SERIAL].tolist(), sampled.keys.tolist(), places, strict=True)) - self._seen
        self._seen |= found
        rows = np.array(list(found), _FORM)
        os.write(self._seen_file, rows.tobytes())

    def sample(self, count: int, timeout: float) -> Sampled | None:
        return self._memory.sample(count, timeout)

    def update_priorities(self, sampled: Sampled, priorities: npt.NDArray[np.floating[Any]]) -> None:
        self._memory.update_priorities(sampled, priorities)

    def close(self) -> None:
        self._memory.close()


class _LossyInsert:
    """A stub method that loses some answers to executed inserts. The shard may then seem unavailable for a while."""

    def __init__(self, link: ShardLink, seed: int) -> None:
        self._link = link
        self._insert, self._poll = link.stub.Insert, link.poll_registration
        self._random = random.Random(seed)
        self._away_until = 0.0
        link.stub.Insert = self
        link.poll_registration = self.poll  # type: ignore[method-assign]

    def __call__(self, request: Any, timeout: float) -> Any:
        answer = self._insert(request, timeout=timeout)
        if answer.outcome == pb.OUTCOME_DONE and self._random.random() < LOST:
            self._away_until = time.monotonic() + self._random.choice((0.0, AWAY_SECONDS))
            raise Unanswered
        return answer

    def poll(self, timeout: float) -> None:
        if time.monotonic() >= self._away_until:
            self._poll(timeout)


class _NumberedWriter(ReplayWriter):
    def __init__(self, items: NumberedItems, writer: ReplayWriter) -> None:
        self.environments = writer.environments
        self._items = items
        self._writer = writer

    def insert(self, insertion: Insertion) -> None:
        count = len(next(iter(insertion.columns.values())))
        columns: Mapping[str, Any] = {**insertion.columns, SERIAL: self._items.numbers(count)}
        self._writer.insert(replace(insertion, columns=columns))


def items_sent(folder: Path) -> int:
    """Return the number of items that all writers have sent or started to send."""
    return sum(sent_by(folder).values())


def sent_by(folder: Path) -> dict[int, int]:
    """Return the number of items that each writer has sent, by its slot."""
    counts = {}
    for path in folder.glob(f"{SENT}*"):
        data = path.read_bytes()
        counts[int(path.name.removeprefix(SENT))] = struct.unpack("<q", data)[0] if data else 0
    return counts


def items_doubled(folder: Path) -> list[str]:
    """Return the violations among the sampled items, as sentences."""
    rows = [np.fromfile(path, _FORM) for path in sorted(folder.glob(f"{SEEN}*"))]
    seen = np.concatenate([np.zeros(0, _FORM), *rows])
    sent = sent_by(folder)
    where: dict[int, tuple[int, int]] = {}
    which: dict[tuple[int, int], int] = {}
    wrong = []
    for serial, key, life in seen.tolist():
        if where.setdefault(serial, (life, key)) != (life, key):
            wrong.append(f"item {serial:#x} is in {where[serial]} and in {(life, key)}")
        if which.setdefault((life, key), serial) != serial:
            wrong.append(f"{(life, key)} is item {which[life, key]:#x} and item {serial:#x}")
        if not serial & (1 << WRITERS) - 1 < sent.get(serial >> WRITERS, 0):
            wrong.append(f"item {serial:#x} was sampled, but was never sent")
    return wrong


def items_seen(folder: Path) -> int:
    """Return the number of different items that were sampled."""
    return len({int(s) for path in folder.glob(f"{SEEN}*") for s in np.fromfile(path, _FORM)["serial"]})
