"""Counts of how often a soak tests each promise, from the metrics and the logs of the servers."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from support.scrape import parsed
from support.soak_parts import Part
from support.soak_watch import new_lines

_REPEATED = 'relaax_parameter_server_pushes_repeated_total{incarnation="%s"}'
_LATE = re.compile(r" is late: .*cannot (list|read|write|delete)")
_SAVED = re.compile(r"saved checkpoint \S+ at global step \d+, in ")
_LEFT_MEMORY = "by gRPC for now, memory is no longer shared"
_EVERY = 0.2


@dataclass(frozen=True)
class Promise:
    """A property that a soak tests. `kind` is the fault that suffices to test it; `leg` is the leg that can test it."""

    name: str
    what: str
    kind: str
    leg: str = ""


PROMISES = (
    Promise("answered again", "repeated pushes that were answered from the ledger", "lost answer"),
    Promise("samples once", "pushes repeated to shard 0, which had merged their samples before", "lost answer"),
    Promise("answered after", "pushes answered from the ledger of the restored checkpoint", "return, lost answer"),
    Promise("refused", "pushes refused because they were rolled back, and sent again", "kill shard"),
    Promise("changes seen", "roll-backs to a checkpoint during the life of a worker", "kill shard"),
    Promise("returns", "incarnations that started from a checkpoint", "kill shard"),
    Promise("cuts", "checkpoints between the parts of a push: one shard holds it, another does not", "delay between"),
    Promise("disk", "saves that failed on a full disk, followed by a successful save", "full disk", "local"),
    Promise("S3", "saves that failed in S3, followed by a successful save", "S3", "s3"),
)


def required(kinds: list[str], leg: str, faults: int) -> list[Promise]:
    """Return the promises that a leg with these kinds of faults must test.

    With fewer faults than kinds, not every kind occurs, and no promise must be tested.
    """
    if faults < len(kinds):
        return []
    return [promise for promise in PROMISES if promise.leg in ("", leg) and any(promise.kind in kind for kind in kinds)]


class Evidence:
    """Evidence of one leg, from the metrics of `shards` and the logs of all servers.

    The last counts of a killed server are lost, so the counts are lower bounds.
    """

    def __init__(self, leg: str, shards: list[Part], rlx_server: Part) -> None:
        self.leg = leg
        self._shards = shards
        self._rlx_server = rlx_server
        self._repeated: dict[tuple[int, int, str], float] = {}  # by shard, process and incarnation
        self._saves = 0
        self._failed: set[str] = set()  # logs whose last save failed
        self._left_memory = 0
        self._read: dict[str, int] = {}
        self._reading = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(index, part), daemon=True) for index, part in enumerate(shards)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop reading metrics."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def repeated(self, incarnation: str, shard: int | None = None) -> int:
        """Return the number of pushes answered from the ledger, first sent to the `same` or `earlier` incarnation."""
        found = dict(self._repeated)
        return int(sum(n for (index, _, of), n in found.items() if of == incarnation and shard in (None, index)))

    @property
    def left_memory(self) -> int:
        """Number of times that a worker changed from shared memory to gRPC."""
        self._read_logs()
        return self._left_memory

    @property
    def saves(self) -> int:
        """Number of checkpoints that were saved after a failed save."""
        self._read_logs()
        return self._saves

    @property
    def saves_failed(self) -> int:
        """Number of failed saves. Consecutive failures count once."""
        return self.saves + len(self._failed)

    def counts(self) -> Counter[str]:
        """Return the counts that the servers report, by the names of the promises."""
        return Counter(
            {
                "answered again": self.repeated("same"),
                "samples once": self.repeated("same", 0) + self.repeated("earlier", 0),
                "answered after": self.repeated("earlier"),
                "disk" if self.leg == "local" else "S3": self.saves,
            }
        )

    def _ask(self, index: int, part: Part) -> None:
        while not self._stop.wait(_EVERY):
            running = part.running
            urls = [line.rsplit(" ", 1)[-1] for line in running.lines if " status at " in line]
            if not urls:
                continue
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                with urllib.request.urlopen(f"{urls[0]}/metrics", timeout=1) as answer:
                    values = parsed(answer.read().decode())
                for incarnation in ("same", "earlier"):
                    self._repeated[index, running.pid, incarnation] = values[_REPEATED % incarnation]

    def _read_logs(self) -> None:
        with self._reading:
            for part in self._shards:
                for line in self._lines(part):
                    if _LATE.search(line[1]):
                        self._failed.add(line[0])
                    elif _SAVED.search(line[1]) and line[0] in self._failed:
                        self._failed.discard(line[0])
                        self._saves += 1
            self._left_memory += sum(_LEFT_MEMORY in line for _, line in self._lines(self._rlx_server))

    def _lines(self, part: Part) -> list[tuple[str, str]]:
        """Return the new log lines of all processes of `part`, with the names of the logs."""
        found = []
        for running in list(part.lives):
            name = str(running.stderr_path)
            lines, self._read[name] = new_lines(running.stderr_path, self._read.get(name, 0))
            found += [(name, line) for line in lines]
        return found


Wait = Callable[[Callable[[], object], float], bool]
"""A function that waits for a condition for a number of seconds at most, and returns whether it became true."""
