"""Machines that die or are cut off, and an account of every update: the soak's algorithm on a Ray cluster."""

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
"""A machine that was cut off for less is not given up by Ray, by its own settings."""
SETTLED_SECONDS = 60.0
Say = Callable[[str], None]


@dataclass
class Crashes:
    """What was seen: of each crash what the machine had, and after how many seconds every client trained again."""

    calm: list[tuple[str, float]] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    steps: int = 0


def crash_config(folder: Path) -> Path:
    """The soak's configuration, which starts its clients too. There is no memory between machines."""
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
    """Four machines, the first of which has the controller and does not die, and a training on them."""

    def __init__(self, network: Namespaces, nodes: RayNodes, folder: Path, say: Say) -> None:
        self.network = network
        self.nodes = nodes
        self.say = say
        self.seen = Crashes()
        self._journals = folder / "journals"
        for index in range(len(network.names)):
            nodes.start(index, CPUS)
        self.training = ClusterTraining(nodes, crash_config(folder), folder)

    def calm(self, since: float, seconds: float = PATIENCE) -> float:
        """Wait until as many workers as there are clients have had a push answered since; return how long it took."""
        wait_until(lambda: self._training(since) >= CLIENTS, "every client trains again", seconds, 0.2)
        return time.monotonic() - since

    def crash(self, index: int) -> None:
        """Let a machine die, wait until all is well, and let it come back."""
        what = self._on(index)
        self.nodes.crash(index)
        calm = self.calm(time.monotonic())
        self.seen.calm.append((what, calm))
        self.say(f"machine {index} with {what} died: every client trains after {calm:.1f} s")
        self.nodes.start(index, CPUS)

    def crash_in_turn(self, count: int, every: float) -> None:
        """Let so many machines die, with a shard, an RLX server or environments by turns, one in `every` seconds."""
        for role in itertools.islice(itertools.cycle(VICTIMS), count):
            begun = time.monotonic()
            self.crash(self.holder(role))
            time.sleep(max(0.0, every - (time.monotonic() - begun)))  # the pace of the faults

    def cut_off(self, index: int, seconds: float) -> None:
        """Pull a machine's cable for so long."""
        what = self._on(index)
        self.network.connect(index, False)
        time.sleep(seconds)  # it is the length of the fault, and waits for nothing
        self.network.connect(index, True)
        calm = self.calm(time.monotonic())
        self.seen.calm.append((f"{what}, cut off for {seconds:g} s", calm))
        self.say(f"machine {index} with {what} was cut off for {seconds:g} s: every client trains after {calm:.1f} s")
        if seconds < NOTICED_SECONDS:
            return
        time.sleep(SETTLED_SECONDS)  # Ray's own time to give a machine up: nothing says that it will not
        if self.nodes.running[index].returncode is not None:
            self.nodes.running.pop(index)
            self.nodes.start(index, CPUS)
        self.training.wait_running()
        self.calm(time.monotonic())

    def holder(self, role: str) -> int:
        """A machine but the first that has a process of a role."""
        status = self.training.wait_running()
        hosts = [process["machine"] for process in of_role(status, role)]
        return next(index for index in range(1, len(self.network.names)) if self.network.address(index) in hosts)

    def end(self, archive: Archive) -> Crashes:
        """Stop, and compare what workers have seen with what checkpoints hold. Raises AssertionError."""
        summary = self.training.stop()
        archive.close()
        assert not archive.damaged, archive.damaged
        saved = sorted(archive.saved.values(), key=lambda each: each.order)
        lives = [read_journal(path) for path in sorted(self._journals.iterdir())]
        broken = [sentence for life in lives for sentence in life.broken]
        assert not broken, broken
        self.seen.account = audit(lives, saved, SHARDS)
        assert not self.seen.account.violations, "\n".join(self.seen.account.violations[:20])
        self.seen.steps = summary["env_steps"]
        wait_until(lambda: not self.orphans(), "no process of the training is left", 60.0)
        return self.seen

    def archive(self) -> Archive:
        """What reads each checkpoint as it is published."""
        return Archive(LocalStore(self.training.folder / "checkpoints"), SLOTS)

    def orphans(self) -> list[str]:
        """Processes of the training on any machine."""
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

    def _on(self, index: int) -> str:
        status = self.training.wait_running()
        names = [each["name"] for each in status["processes"] if each["machine"] == self.network.address(index)]
        return ", ".join(names) or "nothing"

    def _training(self, since: float) -> int:
        """How many workers had an answer since then."""
        count = 0
        for path in self._journals.iterdir():
            if path.stat().st_mtime > time.time() - (time.monotonic() - since):
                text = path.read_text(encoding="utf-8")
                answered = [line.split(" ") for line in text.splitlines()[-20:] if line.startswith("< ")]
                count += any(len(words) > 2 and int(words[2]) > since * 1e6 for words in answered)
        return count
