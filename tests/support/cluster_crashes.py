"""Crashes and network failures of machines in a Ray cluster that trains the soak test's algorithm.

Every update is accounted for: see `support.soak_ledger`.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from relaax.checkpoint import LocalStore
from support.cluster_training import ClusterTraining, of_role
from support.namespaces import Namespaces
from support.processes import wait_until
from support.ray_nodes import RayNodes
from support.soak_journal import read_journal
from support.soak_ledger import Account, audit
from support.soak_service import CLIENT, SLOTS, write_soak_config
from support.soak_watch import Archive

SHARDS = 2
CLIENTS = 4
CPUS = 4
VICTIMS = ("parameter-server", "rlx-server", "client")
PATIENCE = 300.0
NOTICED_SECONDS = 20.0
"""If a machine is disconnected for less time, Ray with its default settings does not declare it dead."""
SETTLED_SECONDS = 60.0
Log = Callable[[str], None]


@dataclass
class Crashes:
    """Measurements of a run with crashes."""

    recoveries: list[tuple[str, float]] = field(default_factory=list)
    """For each crash: the processes of the machine, and the seconds until every client trained again."""
    account: Account = field(default_factory=Account)
    steps: int = 0


def crash_config(folder: Path) -> Path:
    """Write the soak test's configuration, with clients and without shared memory between machines."""
    path = write_soak_config(folder, SHARDS, 1, "grpc")
    document = json.loads(path.read_text(encoding="utf-8"))
    for section in ("relaax-parameter-server", "relaax-rlx-server"):
        document[section].pop("status-bind", None)
    document["relaax-run"] = {
        "environment": str(CLIENT),
        "name": "CartPole-v1",
        "clients": CLIENTS,
        "checkpoint-interval": 3,
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


class CrashScene:
    """A training on several machines. The first machine runs the controller and does not crash."""

    def __init__(self, network: Namespaces, nodes: RayNodes, folder: Path, log: Log) -> None:
        self.network = network
        self.nodes = nodes
        self.log = log
        self.crashes = Crashes()
        self._journals = folder / "journals"
        for index in range(len(network.names)):
            nodes.start(index, CPUS)
        self.training = ClusterTraining(nodes, crash_config(folder), folder)

    def wait_for_recovery(self, since: float, seconds: float = PATIENCE) -> float:
        """Wait until as many workers as clients have had a push answered after `since`. Return the time since then."""
        wait_until(lambda: self._training(since) >= CLIENTS, "every client trains again", seconds, 0.2)
        return time.monotonic() - since

    def crash(self, index: int) -> None:
        """Crash a machine, wait until every client trains again, and restart the machine."""
        what = self._processes_on(index)
        self.nodes.crash(index)
        duration = self.wait_for_recovery(time.monotonic())
        self.crashes.recoveries.append((what, duration))
        self.log(f"machine {index} with {what} died: every client trains after {duration:.1f} s")
        self.nodes.start(index, CPUS)

    def crash_in_turn(self, count: int, every: float) -> None:
        """Crash `count` machines, at least `every` seconds apart.

        The machines run, in turn, a shard, an RLX server, and environments.
        """
        for role in itertools.islice(itertools.cycle(VICTIMS), count):
            begun = time.monotonic()
            self.crash(self.machine_with(role))
            time.sleep(max(0.0, every - (time.monotonic() - begun)))

    def disconnect(self, index: int, seconds: float) -> None:
        """Disconnect a machine from the network for this many seconds."""
        what = self._processes_on(index)
        self.network.connect(index, False)
        time.sleep(seconds)  # the duration of the fault
        self.network.connect(index, True)
        duration = self.wait_for_recovery(time.monotonic())
        self.crashes.recoveries.append((f"{what}, disconnected for {seconds:g} s", duration))
        self.log(
            f"machine {index} with {what} was offline for {seconds:g} s: every client trains after {duration:.1f} s"
        )
        if seconds < NOTICED_SECONDS:
            return
        # In this time Ray may declare the machine dead. Ray does not report if it decides not to.
        time.sleep(SETTLED_SECONDS)
        if self.nodes.running[index].returncode is not None:
            self.nodes.running.pop(index)
            self.nodes.start(index, CPUS)
        self.training.wait_running()
        self.wait_for_recovery(time.monotonic())

    def machine_with(self, role: str) -> int:
        """Return the index of a machine, except the first, that runs a process of a role."""
        status = self.training.wait_running()
        hosts = [process["machine"] for process in of_role(status, role)]
        return next(index for index in range(1, len(self.network.names)) if self.network.address(index) in hosts)

    def end(self, archive: Archive) -> Crashes:
        """Stop, and compare the journals of the workers with the checkpoints. Raises AssertionError."""
        summary = self.training.stop()
        archive.close()
        assert not archive.damaged, archive.damaged
        saved = sorted(archive.saved.values(), key=lambda each: each.order)
        journals = [read_journal(path) for path in sorted(self._journals.iterdir())]
        broken = [sentence for journal in journals for sentence in journal.broken]
        assert not broken, broken
        self.crashes.account = audit(journals, saved, SHARDS)
        assert not self.crashes.account.violations, "\n".join(self.crashes.account.violations[:20])
        self.crashes.steps = summary["env_steps"]
        wait_until(lambda: not self.orphans(), "all processes of the training have ended", 60.0)
        return self.crashes

    def archive(self) -> Archive:
        """Return a reader that loads each checkpoint after its publication."""
        return Archive(LocalStore(self.training.folder / "checkpoints"), SLOTS)

    def orphans(self) -> list[str]:
        """Return the command lines of the training's processes that run on any machine."""
        found = []
        for index in range(len(self.network.names)):
            for pid in self.network.pids(index):
                try:
                    words = " ".join(psutil.Process(pid).cmdline())
                except psutil.Error:
                    continue
                if "relaax.server" in words or CLIENT.name in words:
                    found.append(words)
        return found

    def _processes_on(self, index: int) -> str:
        status = self.training.wait_running()
        names = [each["name"] for each in status["processes"] if each["machine"] == self.network.address(index)]
        return ", ".join(names) or "nothing"

    def _training(self, since: float) -> int:
        """Return the number of workers with a push that was answered after `since`."""
        count = 0
        for path in self._journals.iterdir():
            if path.stat().st_mtime > time.time() - (time.monotonic() - since):
                text = path.read_text(encoding="utf-8")
                answered = [line.split(" ") for line in text.splitlines()[-20:] if line.startswith("< ")]
                count += any(len(words) > 2 and int(words[2]) > since * 1e6 for words in answered)
        return count
