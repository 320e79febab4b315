"""A soak: training under faults, and the checks at its end."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from relaax.checkpoint import CheckpointManager, LocalStore, Store
from support.processes import Processes, wait_until
from support.service import RELAAX
from support.soak_evidence import Evidence, required
from support.soak_faults import End, Ground, Kind, VictimUnavailable, catalogue, deck, filling, writing_nothing
from support.soak_journal import Life, read_journal
from support.soak_ledger import Account, audit
from support.soak_service import SLOTS, SoakService, write_soak_config
from support.soak_summary import Plan, Record, Storm, Struck, summarize
from support.soak_watch import Archive, Sampler

BETWEEN, BETWEEN_SHORT = 1.5, 1.0  # maximum seconds between the starts of two faults of a storm
DISK = "8m"
STEERED = 3
"""Maximum number of additional faults of a leg for each required promise that its planned faults did not test."""

Report = Callable[[str], None]


class SoakFailure(AssertionError):
    """A failed check of a soak, with the number of faults before it."""

    def __init__(self, faults: int, sentence: str) -> None:
        super().__init__(sentence)
        self.faults = faults


@dataclass
class Leg:
    """A part of the soak with its own store. `fill` fills its disk; `s3` is a proxy of S3 that injects errors."""

    name: str
    location: list[str]
    store: Store
    fill: Callable[[Ground], End] | None = None
    s3: Any = None


class Soak:
    """A sequence of legs. `report` is called with each line of progress."""

    def __init__(self, plan: Plan, folder: Path, report: Report) -> None:
        self.plan = plan
        self.folder = folder
        self._report = report
        self.record = Record()
        self.journals = folder / "journals"
        self._random = random.Random(plan.seed)
        self._began = time.monotonic()
        self._config = write_soak_config(folder, plan.shards, plan.seed, plan.bridge)
        self._evidence: Evidence | None = None
        self._counted: Counter[str] = Counter()  # counts of the servers of earlier legs
        self._checked: set[str] = set()
        self.struck = 0

    def leg(self, leg: Leg, faults: int, last: bool) -> None:
        """Start the service, run the storms, end the service in order, and check its store. Raises AssertionError."""
        logs = self.folder / leg.name
        logs.mkdir()
        with Processes(logs) as processes:
            plan = self.plan
            service = SoakService(processes, self._config, plan.shards, plan.clients, leg.location, plan.seed)
            archive = Archive(leg.store, SLOTS)
            try:
                service.start()
                sampler = Sampler(service.addresses["shard-0"], self.journals)
                self._evidence = evidence = service.evidence(leg.name)
                try:
                    self._run_storms(leg, service, sampler, archive, evidence, faults)
                    if last:
                        self._reach_target(sampler)
                finally:
                    evidence.close()
                    sampler.close()
                self._counted, self._evidence = self._counts(), None
                self._report(f"{leg.name}: ending")
                self.record.codes[leg.name] = codes = service.stop()
                reports = "\n".join(running.report() for running in service.all_processes if running.returncode)
                assert not any(codes.values()), f"exit codes must be 0, not {codes}\n{reports}"
            finally:
                service.close()
                archive.close()
                self.record.restarts.update(exit.part for exit in service.parts.exits)
                self.record.starts_without_store += sum(exit.without_store for exit in service.parts.exits)
                self.record.withdrawn += len(archive.withdrawn)
                self.record.workers += len(service.parts.workers)
        self._expect_whole(leg, archive, logs)

    def _run_storms(
        self, leg: Leg, service: SoakService, sampler: Sampler, archive: Archive, evidence: Evidence, faults: int
    ) -> None:
        plan = self.plan
        self._expect_calm(Storm(ended=time.monotonic()), sampler, service)
        ground = Ground(service, self._random, plan.stop_seconds, plan.short, leg.fill, leg.s3, plan.only, plan.bridge)
        ground.sampler, ground.archive, ground.evidence = sampler, archive, evidence
        cards = deck(ground)
        struck = 0
        while struck < faults:
            size = 1 + self._random.randrange(plan.storm)
            struck += self._storm_and_calm(leg, ground, cards, min(size, faults - struck))
            self._report(f"{leg.name}: {struck} of {faults} faults")
            time.sleep(self._random.uniform(0.5, 2))
        self._steer(leg, ground, faults)
        self._expect_checkpoint(sampler, archive)

    def _steer(self, leg: Leg, ground: Ground, faults: int) -> None:
        """Repeat the faults that test the untested promises. Raises AssertionError if a promise stays untested."""
        kinds = catalogue(ground)
        for promise in required([kind.name for kind in kinds], leg.name, faults):
            able = [kind for kind in kinds if promise.kind in kind.name]
            counts = self.counts(ground.archive)
            for kind in itertools.islice(itertools.cycle(able), STEERED):
                if counts[promise.name]:
                    break
                self._report(f"{leg.name}: {promise.name} is not tested yet")
                self._storm_and_calm(leg, ground, iter([kind]), 1)
                counts = self.counts(ground.archive)
            assert counts[promise.name], f"promise {promise.name!r} was not tested: there were no {promise.what}"
            self.record.required.add(promise.name)

    def _storm_and_calm(self, leg: Leg, ground: Ground, cards: Iterator[Kind], size: int) -> int:
        """Run a storm, check the service after it, and return the number of faults. Raises AssertionError."""
        record, service, sampler = self.record, ground.service, ground.sampler
        storm = self._storm(leg, ground, cards, size)
        self._expect_calm(storm, sampler, service)
        record.storms.append(storm)
        step, mean = sampler.status.global_step, sampler.status.mean_return_100
        record.returns.append((time.monotonic() - self._began, step, mean))
        kinds = ", ".join(fault.kind for fault in storm.faults)
        self._report(
            f"{leg.name}: {kinds}; every client trains after {storm.calm:.1f} s, step {step:,}, mean return {mean:.0f}"
        )
        self._expect_sound(service, sampler)
        violations = self._account(ground.archive).violations
        assert not violations, "\n".join(violations[:20])
        return len(storm.faults)

    def _account(self, archive: Archive) -> Account:
        """Return the audit of the run so far. The archive holds the checkpoint from which each incarnation started."""
        known = {stay.incarnation for life in self.lives() for stay in life.stays}
        wait_until(archive.looked, "the store can be read")
        saved = sorted([*self.record.saved, *archive.saved.values()], key=lambda s: s.order)
        known |= {s.incarnation for s in saved}
        lives = [replace(life, stays=[s for s in life.stays if s.incarnation in known]) for life in self.lives()]
        account = audit(lives, saved, self.plan.shards, ended=False, checked=self._checked)
        self._checked |= {s.checkpoint_id for s in saved}
        return account

    def lives(self) -> list[Life]:
        """Return the journals of all workers."""
        return [read_journal(path) for path in sorted(self.journals.iterdir())]

    def counts(self, archive: Archive | None = None, account: Account | None = None) -> Counter[str]:
        """Return how often each promise was tested so far, by its name."""
        if account is None:
            assert archive is not None, "either archive or account must be given"
            account = self._account(archive)
        return self._counts() + Counter(
            {
                "refused": account.refused,
                "changes seen": account.changes_seen,
                "returns": account.returns,
                "cuts": account.cuts_in_a_push,
            }
        )

    def _counts(self) -> Counter[str]:
        return self._counted + (self._evidence.counts() if self._evidence else Counter())

    def _storm(self, leg: Leg, ground: Ground, cards: Iterator[Kind], size: int) -> Storm:
        """Start `size` faults one after the other, and end each when it is due."""
        storm = Storm()
        active: list[tuple[float, End, Struck]] = []
        between = BETWEEN_SHORT if self.plan.short else BETWEEN
        ground.wait = partial(_wait_for, active)
        while len(storm.faults) < size:
            kind = next(cards)
            _end_due(active, time.monotonic() + self._random.uniform(0, between))
            begun = time.monotonic()
            try:
                end = kind.begin(ground)
            except VictimUnavailable:  # the victim is dead, or stopped already
                self.record.skipped += 1
                continue
            self.struck += 1
            broken = ground.sampler.broken()
            assert not broken, "\n".join(broken)
            storm.faults.append(Struck(kind.name, leg.name, begun))
            active.append((time.monotonic() + kind.seconds(ground), end, storm.faults[-1]))
        _end_due(active, float("inf"))
        storm.ended = max(fault.ended for fault in storm.faults)
        return storm

    def _expect_calm(self, storm: Storm, sampler: Sampler, service: SoakService) -> None:
        """Check that the global step rises and the workers of all clients push again within a bounded time."""

        def trains() -> bool:
            rises = sampler.advanced(storm.ended) is not None
            return rises and sampler.training(storm.ended) >= service.clients

        try:
            wait_until(trains, "every client trains again", self.plan.bound, interval=0.05)
        except AssertionError:
            rises = "rises" if sampler.advanced(storm.ended) else "does not rise"
            reports = "\n".join(part.running.report() for part in service.parts.parts.values())
            raise AssertionError(
                f"{self.plan.bound:g} s after {[fault.kind for fault in storm.faults]} the step {rises} and "
                f"{sampler.training(storm.ended)} of {service.clients} clients train\n{reports}"
            ) from None
        storm.calm = time.monotonic() - storm.ended
        for fault in storm.faults:
            fault.advanced = sampler.advanced(fault.ended)

    def _expect_checkpoint(self, sampler: Sampler, archive: Archive) -> None:
        """Wait for a checkpoint after the last fault. Shards notice a vanished shard only after half a minute."""
        step = sampler.status.global_step
        wait_until(
            lambda: archive.newest_step >= step, "a checkpoint is made after the last fault", self.plan.bound, 0.1
        )

    def _expect_sound(self, service: SoakService, sampler: Sampler) -> None:
        broken = sampler.broken()
        assert not broken, "\n".join(broken)
        wrong = [each for each in service.parts.exits if not each.killed and not each.without_store]
        assert not wrong, f"{wrong[0].part} ended without being killed\n{wrong[0].report}"

    def _reach_target(self, sampler: Sampler) -> None:
        """Wait until the mean return reaches the target after the last fault."""
        target, record = self.plan.target, self.record
        reached = lambda: sampler.status.mean_return_100 >= target  # noqa: E731
        wait_until(reached, f"the mean return is {target:g}", self.plan.patience, 0.2)
        step, record.final_return = sampler.status.global_step, sampler.status.mean_return_100
        record.returns.append((time.monotonic() - self._began, step, record.final_return))
        self._report(f"mean return {record.final_return:.1f} at step {step:,}")

    def _expect_whole(self, leg: Leg, archive: Archive, logs: Path) -> None:
        """Check that every published checkpoint is complete, and that `clean` deletes all unpublished files."""
        assert not archive.damaged, archive.damaged
        saved = sorted(archive.saved.values(), key=lambda s: s.order)
        self.record.saved += saved
        self.record.published[leg.name] = len(saved)
        text = "".join(path.read_text(errors="replace") for path in sorted(logs.glob("*.stderr")))
        self.record.late += text.count(" is late:")
        manager = CheckpointManager(leg.store)
        for checkpoint_id in manager.published():
            manager.load(checkpoint_id)
        self.record.unfinished += len(_unpublished(leg.store))
        manager.clean()
        assert not _unpublished(leg.store), _unpublished(leg.store)


def _end_due(active: list[tuple[float, End, Struck]], until: float) -> None:
    """End the faults that are due before `until`. If `until` is finite, wait until that time."""
    while active:
        first = min(active, key=lambda each: each[0])
        due, end, fault = first
        if due > until:
            break
        time.sleep(max(0.0, due - time.monotonic()))
        active.remove(first)  # the end of a fault may wait, and end others meanwhile
        end()
        fault.ended = time.monotonic()
    if until < float("inf"):
        time.sleep(max(0.0, until - time.monotonic()))


def _wait_for(active: list[tuple[float, End, Struck]], condition: Callable[[], object], seconds: float) -> bool:
    """Return whether the condition became true within `seconds`. Meanwhile, end the faults that are due."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        _end_due(active, time.monotonic() + 0.05)
    return True


def _unpublished(store: Store) -> list[str]:
    keys = store.list()
    published = {key.partition("/")[0] for key in keys if key.endswith("/manifest.json")}
    return [key for key in keys if "/" in key and key.partition("/")[0] not in published]


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a file system of a few megabytes at `folder`. Yield False if the user may not mount."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    mounted = shutil.which("mount") is not None and not subprocess.run(command, capture_output=True).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def run_soak(plan: Plan, folder: Path, report: Report) -> dict[str, Any]:
    """Train over two legs, on a small disk and then in S3, and return the summary. Raises SoakFailure."""
    soak = Soak(plan, folder, report)
    try:
        return _run_legs(soak, plan, folder, report)
    except AssertionError as failure:
        raise SoakFailure(soak.struck, str(failure)) from failure


def _run_legs(soak: Soak, plan: Plan, folder: Path, report: Report) -> dict[str, Any]:
    begun = time.monotonic()
    first = plan.faults // 2 if plan.s3 else plan.faults
    with contextlib.ExitStack() as stack:
        mounted = stack.enter_context(small_disk(folder / "disk"))
        checkpoints = folder / "disk" / "checkpoints"
        checkpoints.mkdir()
        if not mounted:
            report("cannot mount a file system: a limit on the length of files replaces a full disk")
        fill = filling(checkpoints) if mounted else writing_nothing
        location = ["--checkpoint-dir", str(checkpoints)]
        soak.leg(Leg("local", location, LocalStore(checkpoints), fill), first, last=not plan.s3)
        if plan.s3:
            _second_leg(soak, stack, checkpoints, plan.faults - first)
    account = audit(soak.lives(), soak.record.saved, plan.shards)
    soak.record.tested = soak.counts(account=account)
    summary = summarize(plan, soak.record, account, time.monotonic() - begun)
    assert not account.violations, f"{len(account.violations)} violations\n" + "\n".join(account.violations[:20])
    return summary


def _second_leg(soak: Soak, stack: contextlib.ExitStack, checkpoints: Path, faults: int) -> None:
    from support.s3_server import S3Proxy, keys_file, s3_server  # loads boto3

    folder = soak.folder / "s3-server"
    folder.mkdir()
    server = stack.enter_context(s3_server(folder))
    proxy = stack.enter_context(S3Proxy(server.address))
    bucket, keys = server.bucket(), keys_file(folder)
    command = [*RELAAX, "checkpoints", "copy", str(checkpoints), f"s3://{bucket}/some/run", "--newest"]
    command += ["--aws-keys", str(keys), "--aws-endpoint", f"http://{server.address}"]
    copied = subprocess.run(command, capture_output=True, text=True, check=False)
    assert copied.returncode == 0, copied.stderr
    location = ["--checkpoint-aws-s3", bucket, "some/run", "--aws-keys", str(keys), "--aws-endpoint", proxy.url]
    soak.leg(Leg("s3", location, server.store(bucket), s3=proxy), faults, last=True)
