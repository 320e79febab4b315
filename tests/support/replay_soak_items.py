"""Items that have numbers of their own, so that it shows whether one of them is in a replay memory twice."""

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
"""Bits of a serial number that count a writer's items."""
SENT, SEEN = "sent-", "seen-"
LOST = 0.05
"""Of the answers to inserts."""
AWAY_SECONDS = 3.0
_FORM = np.dtype([("serial", "<i8"), ("key", "<u8"), ("life", "<u8")])


def with_serials(declaration: TableDeclaration) -> TableDeclaration:
    """The table with a column for their numbers."""
    spec = declaration.spec
    return replace(declaration, spec=replace(spec, fields={**spec.fields, SERIAL: Field("int64")}))


class NumberedItems(ReplayMemory):
    """A replay memory whose items are numbered. Who writes keeps account of how many it has sent; who samples, of what
    was where.

    `slot`: a number of this process alone. Of a client of replay servers some answers to inserts are lost.
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
        """Numbers of items that are about to be sent; the account has them before that."""
        first = self._sent
        self._sent += count
        os.pwrite(self._sent_file, struct.pack("<q", self._sent), 0)
        return np.arange(first, self._sent, dtype=np.int64) + (self._slot << WRITERS)

    def see(self, sampled: Sampled) -> None:
        """Note what was drawn, as a learner has it."""
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
    """Loses answers to inserts that have arrived; of some shards nothing is heard then for longer than writers wait."""

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
    """How many all writers have sent, or begun to send."""
    return sum(sent_by(folder).values())


def sent_by(folder: Path) -> dict[int, int]:
    """How many each writer has sent, by its slot."""
    counts = {}
    for path in folder.glob(f"{SENT}*"):
        data = path.read_bytes()
        counts[int(path.name.removeprefix(SENT))] = struct.unpack("<q", data)[0] if data else 0
    return counts


def items_doubled(folder: Path) -> list[str]:
    """What is wrong with the items that were sampled: sentences, and there should be none."""
    rows = [np.fromfile(path, _FORM) for path in sorted(folder.glob(f"{SEEN}*"))]
    seen = np.concatenate([np.zeros(0, _FORM), *rows])
    sent = sent_by(folder)
    where: dict[int, tuple[int, int]] = {}
    which: dict[tuple[int, int], int] = {}
    wrong = []
    for serial, key, life in seen.tolist():
        if where.setdefault(serial, (life, key)) != (life, key):
            wrong.append(f"item {serial:#x} is in {where[serial]}, and in {(life, key)}")
        if which.setdefault((life, key), serial) != serial:
            wrong.append(f"{(life, key)} is item {which[life, key]:#x}, and item {serial:#x}")
        if not serial & (1 << WRITERS) - 1 < sent.get(serial >> WRITERS, 0):
            wrong.append(f"item {serial:#x} was drawn, and nobody has sent it")
    return wrong


def items_seen(folder: Path) -> int:
    """How many items were sampled, each once."""
    return len({int(s) for path in folder.glob(f"{SEEN}*") for s in np.fromfile(path, _FORM)["serial"]})
