"""Observers of training during a soak: its global step, its workers, and every published checkpoint."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.checkpoint import CheckpointManager, Store, StoreError
from relaax.checkpoint.manifest import Damaged
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.parameters.moments import from_arrays
from relaax.transport.grpc_options import client_options
from support.soak_layout import Layout
from support.soak_parameters import STATISTIC

SEVERAL = 450  # bytes of a journal: about eight pushes


@dataclass(frozen=True)
class SavedShard:
    """A shard's part of a checkpoint.

    `ledger`: worker to [push id, discard, staleness]. `samples`: number of samples of the merged statistic, which
    shard 0 keeps.
    """

    version: int
    counts: npt.NDArray[np.int64]
    total: int
    ledger: dict[str, list[int]]
    env_steps: int
    samples: float = 0.0


@dataclass(frozen=True)
class Saved:
    """The parts of a checkpoint that the audit needs. The newest checkpoint has the largest `order`."""

    checkpoint_id: str
    order: tuple[int, int]
    incarnation: int
    global_step: int
    shards: list[SavedShard]


def read_saved(manager: CheckpointManager, checkpoint_id: str, slots: int, order: tuple[int, int]) -> Saved:
    """Read a whole checkpoint and compare every part with its hash. Raises Damaged and StoreError."""
    checkpoint = manager.load(checkpoint_id)
    manifest = checkpoint.manifest
    described = manifest["shards"]
    vector = np.concatenate([np.asarray(checkpoint.parts[shard["part"]]["parameters"]) for shard in described])
    layout = Layout(len(vector) - len(described) * (slots + 1), len(described), slots)
    counts, totals = layout.counts(vector).astype(np.int64), layout.totals(vector).astype(np.int64)
    shards = []
    for index, shard in enumerate(described):
        assert (shard["start"], shard["end"]) == (
            index * layout.size // len(described),
            (index + 1) * layout.size // len(described),
        )
        statistics = from_arrays(checkpoint.parts[shard["part"]])
        shards.append(
            SavedShard(
                shard["version"],
                counts[index],
                int(totals[index]),
                dict(shard["ledger"]),
                shard["counters"]["env_steps"],
                statistics[STATISTIC].count if STATISTIC in statistics else 0.0,
            )
        )
    return Saved(checkpoint_id, order, int(manifest["incarnation"]), int(manifest["global_step"]), shards)


class Archive:
    """A reader that reads every checkpoint of a store as soon as it is published, before it is deleted."""

    def __init__(self, store: Store, slots: int) -> None:
        self.saved: dict[str, Saved] = {}
        self.withdrawn: list[Saved] = []
        """Checkpoints that their writer withdrew because the store had reported that they were not published."""
        self.damaged: list[str] = []
        self._slots = slots
        self._manager = CheckpointManager(store)
        self._looking = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and read the store one last time."""
        self._stop.set()
        self._thread.join()
        self.look()

    @property
    def newest_step(self) -> int:
        """Global step of the newest checkpoint that was read, or -1."""
        saved = list(self.saved.values())
        return max(saved, key=lambda s: s.order).global_step if saved else -1

    def look(self) -> None:
        """Read new checkpoints now. Raises StoreError."""
        with self._looking:
            self._look()

    def looked(self) -> bool:
        """Read new checkpoints now. Return False if the store could not be read."""
        try:
            self.look()
        except StoreError:
            return False
        return True

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self.looked()

    def _look(self) -> None:
        found = self._manager.published()
        for checkpoint_id in found:
            if checkpoint_id in self.saved:
                continue
            try:
                saved = read_saved(self._manager, checkpoint_id, self._slots, order_of(checkpoint_id))
            except Damaged as damage:
                if checkpoint_id in self._manager.published():
                    self.damaged.append(f"{checkpoint_id}: {damage}")
            else:
                self.saved[checkpoint_id] = saved
        for checkpoint_id in set(self.saved) - set(found):
            if found and order_of(checkpoint_id) > order_of(
                found[0]
            ):  # the newest checkpoint is deleted only if it is withdrawn
                self.withdrawn.append(self.saved.pop(checkpoint_id))


def order_of(checkpoint_id: str) -> tuple[int, int]:
    """Return the fence and the sequence number of a checkpoint."""
    sequence, _, rest = checkpoint_id.partition("-")
    _, _, fence = rest.partition("-f")
    return int(fence or 0), int(sequence)


@dataclass(frozen=True)
class Sample:
    """The status of shard 0 at a time of time.monotonic."""

    time: float
    incarnation: int
    global_step: int


class Sampler:
    """A thread that polls the status of shard 0 and the sizes of the journals."""

    def __init__(self, address: str, journals: Path) -> None:
        self.samples: list[Sample] = []
        self.status: Any = None
        self._address = address
        self._journals = journals
        self._grown: dict[str, list[tuple[float, int]]] = {}  # for each journal, times and its sizes at these times
        self._read: dict[str, int] = {}  # bytes of the journals that were searched for complaints
        self._complaints: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()
        self._thread.join()

    def advanced(self, since: float) -> float | None:
        """Return the time of the first rise of the global step after `since`; None if it has not risen."""
        previous: Sample | None = None
        for sample in reversed_until(self.samples, since):
            if (
                previous is not None
                and sample.incarnation == previous.incarnation
                and sample.global_step > previous.global_step
            ):
                return sample.time
            previous = sample
        return None

    def step_after(self, since: float) -> int | None:
        """Return the first global step that was read after `since`; None if there is none yet."""
        later = reversed_until(self.samples, since)
        return later[0].global_step if later else None

    def training(self, since: float) -> int:
        """Return the number of workers with several pushes after `since`."""
        return sum(_size_at(grown, None) - _size_at(grown, since) >= SEVERAL for grown in list(self._grown.values()))

    def broken(self) -> list[str]:
        """Return the violations in the journals, with the names of the journals."""
        for path in sorted(self._journals.iterdir()):
            begin = self._read.get(path.name, 0)
            lines, self._read[path.name] = new_lines(path, begin)
            self._complaints += [f"worker {path.name}: {line[2:]}" for line in lines if line.startswith("!")]
        return list(self._complaints)

    def _run(self) -> None:
        channel = grpc.insecure_channel(self._address, options=client_options(longest=2**20))
        stub = rpc.ParameterServerServiceStub(channel)
        with channel:
            while not self._stop.wait(0.1):
                with contextlib.suppress(grpc.RpcError):
                    status = stub.GetStatus(pb.GetStatusRequest(), timeout=1)
                    self.status = status
                    self.samples.append(Sample(time.monotonic(), status.incarnation, status.global_step))
                self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for path in self._journals.iterdir():
            size = path.stat().st_size
            grown = self._grown.setdefault(path.name, [])
            if size != _size_at(grown, None):
                grown.append((now, size))


def new_lines(path: Path, begin: int) -> tuple[list[str], int]:
    """Return the whole lines of a growing file from byte `begin` on, and the position after them."""
    with path.open("rb") as file:
        file.seek(begin)
        data = file.read()
    end = data.rfind(b"\n") + 1
    return data[:end].decode(errors="replace").splitlines(), begin + end


def _size_at(grown: list[tuple[float, int]], time: float | None) -> int:
    """Return the size at `time`, or the newest size if it is None."""
    for at, size in reversed(grown):
        if time is None or at <= time:
            return size
    return 0


def reversed_until(samples: list[Sample], since: float) -> list[Sample]:
    """Return the samples after `since` in order, without a search through all samples."""
    tail: list[Sample] = []
    for index in range(len(samples) - 1, -1, -1):
        if samples[index].time <= since:
            break
        tail.append(samples[index])
    return tail[::-1]
