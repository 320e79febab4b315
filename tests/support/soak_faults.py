"""Faults of a soak, in a seeded order in which every kind occurs equally often."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.soak_evidence import Wait
from support.soak_service import SLOTS, SoakService

End = Callable[[], None]

ATTEMPTS = 3
DEADLINE_SECONDS = 20.0
SEEN_SECONDS = 10.0
RETURN_SECONDS = 25.0
MET_SECONDS = 20.0


class VictimUnavailable(Exception):
    """The victim is not running, or is stopped already."""


@dataclass
class Ground:
    """The target of the faults. `fill` and `s3` depend on the kind of store.

    `wait` waits for a condition, and meanwhile ends other faults that are due.
    """

    service: SoakService
    random: random.Random
    stop_seconds: float
    short: bool = False
    fill: Callable[[Ground], End] | None = None
    s3: Any = None
    only: str = ""
    bridge: str = "auto"
    wait: Wait = lambda condition, seconds: False
    evidence: Any = None  # Evidence, Sampler and Archive of the leg
    sampler: Any = None
    archive: Any = None
    stopped: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Kind:
    """A kind of fault. `begin` starts it and returns a function that ends it; `seconds` returns its duration."""

    name: str
    begin: Callable[[Ground], End]
    seconds: Callable[[Ground], float]


def deck(ground: Ground) -> Iterator[Kind]:
    """Yield all kinds in a random order, repeatedly and without end."""
    assert catalogue(ground), f"no fault has {ground.only!r} in its name"
    while True:
        kinds = catalogue(ground)
        ground.random.shuffle(kinds)
        yield from kinds


def catalogue(ground: Ground) -> list[Kind]:
    """Return the kinds of faults that apply to `ground`."""
    victims = [*(f"shard-{i}" for i in range(ground.service.shards)), "rlx-server", "worker", "client"]
    kinds = [Kind(f"kill {victim}", _killing(victim), _no_time) for victim in victims]
    kinds += [Kind(f"stop {victim}", _stopping(victim), _stop_seconds) for victim in victims]
    kinds += [
        Kind("cut", _on_a_wire(lambda w, r: w.cut()), _no_time),
        Kind("truncate", _on_a_wire(lambda w, r: w.truncate(r.randrange(30_000))), _some_time),
        Kind("delay", _on_a_wire(lambda w, r: w.delay(r.uniform(0.05, 0.5))), _some_time),
        Kind("slow link", _on_a_wire(lambda w, r: w.throttle(r.choice([10e3, 40e3, 160e3]))), _some_time),
        Kind("stall", _on_a_wire(lambda w, r: w.stall()), _some_time),
        Kind("vanish", _vanish, _no_time),
    ]
    if ground.service.shards > 1:
        kinds.append(Kind("delay between shards", _delay_between_shards, _some_time))
    if not (ground.short and ground.bridge == "auto"):  # such a fault takes half a minute
        kinds += [
            Kind("lost answer", _lost_answer, _no_time),
            Kind("return, lost answer", _lost_answer_and_return, _no_time),
        ]
    if ground.fill is not None:
        kinds += [Kind("full disk", _until_a_save_failed(ground.fill), _some_time)] * 4
    if ground.s3 is not None:
        kinds += [
            Kind(f"S3 {name}", _until_a_save_failed(_at_s3(code)), _some_time)
            for name, code in (
                ("500", "InternalError"),
                ("503", "SlowDown"),
                ("403", "AccessDenied"),
                ("stall", "stall"),
                ("reset", "reset"),
                ("lost answer", "lost"),
            )
        ]
    return [kind for kind in kinds if ground.only in kind.name]


def _no_time(ground: Ground) -> float:
    return 0.0


def _stop_seconds(ground: Ground) -> float:
    """Return a time longer than a lease, or half of it, which is longer than a worker's timeout for an answer."""
    return ground.stop_seconds * ground.random.choice((0.5, 0.5, 1.0))


def _some_time(ground: Ground) -> float:
    return ground.random.uniform(1, 3) if ground.short else ground.random.uniform(2, 10)


def _victim(ground: Ground, name: str) -> tuple[psutil.Process, End]:
    """Return the process to hit, and a function that records that the soak killed it."""
    if name == "worker":
        workers = ground.service.parts.living_workers()
        if not workers:
            raise VictimUnavailable("there is no worker")
        return ground.random.choice(workers), lambda: None
    parts = ground.service.parts.parts
    if name == "client":
        name = ground.random.choice([part for part in parts if part.startswith("client-")])
    part = parts[name]
    victim = part.victim()
    if victim is None:
        raise VictimUnavailable(f"{name} is dead")
    return victim, lambda: part.killed.add(victim.pid)


def _killing(name: str) -> Callable[[Ground], End]:
    def begin(ground: Ground) -> End:
        victim, own = _victim(ground, name)
        own()
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
        return lambda: None

    return begin


def _stopping(name: str) -> Callable[[Ground], End]:
    def begin(ground: Ground) -> End:
        victim, _ = _victim(ground, name)
        if victim.pid in ground.stopped:
            raise VictimUnavailable(f"{name} is stopped already")
        ground.stopped.add(victim.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.suspend()

        def end() -> None:
            ground.stopped.discard(victim.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.resume()

        return end

    return begin


def _on_a_wire(spoil: Callable[[Any, random.Random], None]) -> Callable[[Ground], End]:
    def begin(ground: Ground) -> End:
        wire = ground.service.wires[ground.random.choice(sorted(ground.service.wires))]
        spoil(wire, ground.random)
        return wire.heal

    return begin


def _vanish(ground: Ground) -> End:
    # A client waits 25 s for a server that does not answer: too long for a short soak.
    wires = [name for name in sorted(ground.service.wires) if not (ground.short and name == "clients")]
    directions = ground.random.choice([(True,), (False,), (True, False)])
    ground.service.wires[ground.random.choice(wires)].swallow(*directions)
    return lambda: None


def _delay_between_shards(ground: Ground) -> End:
    """Delay messages between shards until two checkpoints are saved. The delay is too short to prevent checkpoints."""
    wires = [wire for name, wire in sorted(ground.service.wires.items()) if name.startswith("join-")]
    seconds, before = ground.random.uniform(0.05, 0.2), len(ground.archive.saved)
    for wire in wires:
        wire.delay(seconds)

    def end() -> None:
        # The first checkpoint may have been cut before the delay.
        ground.wait(lambda: len(ground.archive.saved) >= before + 2, 0.0 if ground.short else SEEN_SECONDS)
        for wire in wires:
            wire.heal()

    return end


def _at_s3(kind: str) -> Callable[[Ground], End]:
    def begin(ground: Ground) -> End:
        ground.s3.fail(kind)
        return lambda: ground.s3.heal()

    return begin


def _until_a_save_failed(begin: Callable[[Ground], End]) -> Callable[[Ground], End]:
    """Return a fault of the store that lasts longer if no save has failed yet."""

    def begun(ground: Ground) -> End:
        end = begin(ground)

        def met() -> bool:
            return ground.evidence.saves_failed > 0

        def finish() -> None:
            if not (ground.short or met()):
                ground.wait(met, MET_SECONDS)
            end()

        return finish

    return begun


def _lost_answer(ground: Ground) -> End:
    """Lose answers to applied pushes until a repeated push is answered from the ledger."""
    shard = ground.random.randrange(ground.service.shards)
    for _ in range(ATTEMPTS):
        before = ground.evidence.repeated("same", shard)
        if ground.bridge == "auto":
            _past_the_deadline(ground, shard)  # the shard gets the push by shared memory, and its repeat by gRPC
        else:
            _swallow_an_answer(ground, shard)
            ground.service.wires[f"shard-{shard}"].cut()
        if ground.wait(lambda: ground.evidence.repeated("same", shard) > before, SEEN_SECONDS):  # noqa: B023
            break
    return lambda: None


def _lost_answer_and_return(ground: Ground) -> End:
    """Lose shard 0's answer to a push. Before the push is repeated, roll back to a checkpoint that holds it."""
    victim = f"shard-{ground.random.randrange(ground.service.shards)}"
    wire = ground.service.wires["shard-0"]
    for _ in range(ATTEMPTS):
        before, incarnation = ground.evidence.repeated("earlier"), ground.sampler.status.incarnation
        if ground.bridge == "auto":
            _past_the_deadline(ground, 0)  # workers use gRPC for half a minute
        if _swallow_an_answer(ground, 0):
            lost = time.monotonic()
            ground.wait(lambda: ground.sampler.step_after(lost) is not None, SEEN_SECONDS)  # noqa: B023
            step = ground.sampler.step_after(lost) or 0
            if ground.wait(lambda: ground.archive.newest_step >= step, SEEN_SECONDS):  # noqa: B023
                with contextlib.suppress(VictimUnavailable):
                    _killing(victim)(ground)
                ground.wait(lambda: ground.sampler.status.incarnation != incarnation, RETURN_SECONDS)  # noqa: B023
        wire.cut()
        if ground.wait(lambda: ground.evidence.repeated("earlier") > before, SEEN_SECONDS):  # noqa: B023
            break
    return lambda: None


def _swallow_an_answer(ground: Ground, shard: int) -> bool:
    """Swallow answers until one has parameters, so that its push was applied. Return False after a timeout.

    The connections stay open.
    """
    wire = ground.service.wires[f"shard-{shard}"]
    wire.swallow(False)
    return ground.wait(lambda: wire.swallowed >= 4 * SLOTS, SEEN_SECONDS)


def _past_the_deadline(ground: Ground, shard: int) -> None:
    """Stop a shard until its workers no longer wait for it in shared memory."""
    end = _stopping(f"shard-{shard}")(ground)
    before = ground.evidence.left_memory
    try:
        if ground.wait(lambda: ground.evidence.left_memory > before, DEADLINE_SECONDS):
            ground.wait(lambda: False, 0.5)  # the timeouts of the other workers end at about the same time
    finally:
        end()


def filling(folder: Path) -> Callable[[Ground], End]:
    """Return a fault that fills the file system of `folder` to its last byte. The file system should be small."""

    def begin(ground: Ground) -> End:
        ballast = folder.parent / "ballast"
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            for size in (4096, 512, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size):
                        pass
        return lambda: ballast.unlink(missing_ok=True)

    return begin


def writing_nothing(ground: Ground) -> End:
    """Limit the files of the shards to a few bytes, for machines on which a file system cannot be mounted."""
    limited = []
    for pid in ground.service.shard_pids():
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            process.rlimit(psutil.RLIMIT_FSIZE, (64, psutil.RLIM_INFINITY))
            limited.append(process)

    def end() -> None:
        for process in limited:
            with contextlib.suppress(psutil.Error, OSError):
                process.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))

    return end


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by SIGSTOP."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False
