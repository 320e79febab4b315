"""Journal of one worker of a soak, written line by line: a killed worker loses at most its last line."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

Counts = tuple[int, ...]  # counters of one worker, one for each shard

JOINED, PUSHING, PUSHED, REFUSED, BROKEN, CLOSED = "J><x!."


class Journal:
    """The journal that a worker writes. `slot`, the first free number, is the worker's counter in the flat vector."""

    def __init__(self, folder: Path, slots: int) -> None:
        self.slot = sum(1 for _ in folder.iterdir())
        while True:
            if self.slot >= slots:
                raise RuntimeError(f"all {slots} slots are used; raise `slots` to count more workers")
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(folder / f"{self.slot:05d}", flags, 0o666)
                break
            except FileExistsError:
                self.slot += 1

    def joined(self, incarnation: int, worker: str, push_id: int, counts: Counts) -> None:
        """Record that the worker joined an incarnation, and its counters at that time."""
        self._write(JOINED, incarnation, worker, push_id, *counts)

    def pushing(self, push_id: int, env_steps: int, gradient: bool, ways: str = "") -> None:
        """Record that a push is about to be sent. `ways`: for each shard, m for shared memory or g for gRPC."""
        self._write(PUSHING, push_id, _now(), env_steps, int(gradient), ways or "-")

    def pushed(self, push_id: int, outcome: str, counts: Counts, repeats: int = 0) -> None:
        """Record the answer to a push, the number of repeats of its parts, and the counters after it."""
        self._write(PUSHED, push_id, _now(), outcome, repeats, *counts)

    def refused(self, repeats: int) -> None:
        """Record that a push was refused because its incarnation has ended."""
        self._write(REFUSED, repeats)

    def broken(self, sentence: str) -> None:
        """Record a violation by the parameter server."""
        self._write(BROKEN, sentence)

    def closed(self) -> None:
        """Record that the worker ends."""
        self._write(CLOSED)

    def _write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


@dataclass
class Push:
    """A push: `outcome` is None if it was not answered, and `counts` are the counters after it.

    `sent` and `answered` are microseconds of the monotonic clock that all processes of a machine share. For `ways` see
    `Journal.pushing`.
    """

    env_steps: int
    gradient: bool
    outcome: str | None = None
    counts: Counts = ()
    sent: int = 0
    answered: int = 0
    repeats: int = 0
    ways: str = ""
    refused: bool = False


@dataclass
class Stay:
    """The part of a journal in one incarnation. `pushes`: by push id. `base`: counters when the worker joined."""

    incarnation: int
    worker: str
    base: Counts
    first: int
    pushes: dict[int, Push] = field(default_factory=dict)

    def before(self, push_id: int) -> Counts:
        """Return the last counters that the worker saw before a push."""
        known = [i for i, push in self.pushes.items() if i < push_id and push.outcome is not None]
        return self.pushes[max(known)].counts if known else self.base

    @property
    def last(self) -> Counts:
        """Last counters that the worker saw."""
        return self.before(2**63)

    @property
    def undecided(self) -> dict[int, Push]:
        """Pushes without an answer: at most one."""
        return {i: push for i, push in self.pushes.items() if push.outcome is None}


@dataclass
class Life:
    """The whole journal of one worker."""

    slot: int
    stays: list[Stay]
    broken: list[str]
    closed: bool


def read_journal(path: Path) -> Life:
    """Read a worker's journal up to its last whole line. A push of an incarnation that ended stays unanswered."""
    life = Life(int(path.name), [], [], False)
    text = path.read_text(encoding="utf-8")
    for line in text[: text.rfind("\n") + 1].splitlines():
        kind, *words = line.split(" ")
        if kind == JOINED:
            incarnation, worker, push_id, *counts = words
            life.stays.append(Stay(int(incarnation), worker, _counts(counts), int(push_id)))
        elif kind == PUSHING:
            number, sent, env_steps, gradient = map(int, words[:4])
            push = life.stays[-1].pushes[number] = Push(env_steps, bool(gradient), sent=sent, ways=words[4])
        elif kind == PUSHED:
            push = life.stays[-1].pushes[int(words[0])]
            push.answered, push.outcome, push.repeats = int(words[1]), words[2], int(words[3])
            push.counts = _counts(words[4:])
        elif kind == REFUSED:
            push = life.stays[-1].pushes[max(life.stays[-1].pushes)]
            push.repeats, push.refused = int(words[0]), True
        elif kind == BROKEN:
            life.broken.append(" ".join(words))
        elif kind == CLOSED:
            life.closed = True
    return life


def _now() -> int:
    return time.monotonic_ns() // 1000


def _counts(words: list[str]) -> Counts:
    return tuple(int(word) for word in words)
