"""Parameter servers that are killed as a file of some kind appears among their checkpoints."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from relaax.checkpoint import CheckpointManager, LocalStore
from support.parameter_server_processes import trained, worker, write_configuration
from support.parameter_servers import parameter_client
from support.processes import Processes, wait_until
from support.shard_processes import ShardProcesses

# As large as it must be for a part to be a while in the writing.
_ALGORITHM = ("algorithm.max_global_step=1e9", "algorithm.network.dense=[500, 500]")
_SERVER = ("relaax-parameter-server.checkpoint_interval=0.2", "relaax-parameter-server.checkpoints_kept=2")
_PATIENCE = 30.0  # seconds after which a moment that did not come is given up
_STEPS = 10
_FILES = ("manifest.json", "shard-0.safetensors", "shard-1.safetensors")

Names = frozenset[str]


@dataclass(frozen=True, slots=True)
class Look:
    """What there was before a checkpoint, and what there is now: paths below the directory."""

    before: Names
    now: Names

    def ends(self, *endings: str) -> bool:
        """Whether there is a new file that ends so."""
        return any(name.endswith(endings) for name in self.now - self.before)

    def writes(self) -> bool:
        """Whether a new file is being written in a directory that is new."""
        return any("/.unfinished-" in name for name in self.now - self.before)


MOMENTS: dict[str, Callable[[Look], bool]] = {
    "a part is being written": Look.writes,
    "a part is there": lambda look: look.ends(".safetensors"),
    "the last part is there": lambda look: look.ends("/shard-1.safetensors"),
    "the lease is being renewed": lambda look: any(name.startswith(".unfinished-") for name in look.now),
    "the manifest is being written": lambda look: look.ends(".safetensors") and look.writes(),
    "it is published": lambda look: look.ends("/manifest.json"),
    "an old one is being deleted": lambda look: any(name.endswith("/manifest.json") for name in look.before - look.now),
}


class CrashedServers:
    """`count` shards with a worker, that are killed and started again."""

    def __init__(self, processes: Processes, folder: Path, count: int) -> None:
        self._processes = processes
        self._config = write_configuration(folder)
        self._directory = folder / "from-the-file"
        self.manager = CheckpointManager(LocalStore(self._directory))
        options = [word for one in (*_ALGORITHM, *_SERVER) for word in ("--set", one)]
        self._shards = ShardProcesses(processes, self._config, count, options)
        self._count = count
        self._random = random.Random(count)
        self._known: dict[int, bytes] = {}
        self.met: list[str] = []
        """The moments that came in time."""

    def kill_once(self, moment: str, victim: int) -> None:
        """Kill a shard when the moment comes, start it again, and expect the previous state or the new one."""
        with parameter_client(self._shards.addresses, unavailable_after=200.0) as bridge:
            bridge.register(worker(self._config, _ALGORITHM))
            deadline = time.monotonic() + _PATIENCE
            while True:
                published = self.manager.published()
                before, since = self._names(), bridge.global_step
                parameters = trained(bridge, 1, seed=self._random.randrange(2**32), env_steps=_STEPS)
                self._known[bridge.global_step] = parameters.tobytes()
                if self._comes(MOMENTS[moment], before, published):
                    self.met.append(moment)
                    break
                if time.monotonic() > deadline:
                    break
            # What there was before the push may be in no checkpoint yet, after a new model's first one: the next may be
            # of that still.
            allowed = {bridge.global_step, since, _newest(published)}
            time.sleep(self._random.choice((0.0, self._random.random() * 0.01)))
            self._shards.running[victim].kill()
        self._shards.again(victim)
        self._expect_one_of(allowed)
        if victim == 0:
            self._expect_nothing_left()

    def verify(self) -> None:
        """`relaax checkpoints verify` finds nothing damaged."""
        checked = self._processes.start("relaax", "checkpoints", "verify", self._directory)
        assert checked.wait(60) == 0, checked.report()

    def _names(self) -> Names:
        return frozenset(
            os.path.relpath(os.path.join(folder, name), self._directory)
            for folder, _, names in os.walk(self._directory)
            for name in names
        )

    def _comes(self, moment: Callable[[Look], bool], before: Names, published: list[str]) -> bool:
        """Whether it comes before the next checkpoint is published and an old one has gone."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            now = self._names()
            if moment(Look(before, now)):
                return True
            new = {name for name in now - before if name.endswith("/manifest.json")}
            gone = {name for name in before - now if name.endswith("/manifest.json")}
            if new and (gone or len(published) < 2):
                return False
        return False

    def _expect_one_of(self, allowed: set[int]) -> None:
        with parameter_client(self._shards.addresses, unavailable_after=200.0) as bridge:
            registered = bridge.register(worker(self._config, _ALGORITHM))
            step = registered.global_step
            assert step in allowed
            published = self.manager.published()
            assert step == _newest(published), "no other one than the newest is restored"
            if step in self._known:
                assert bridge.pull().parameters.tobytes() == self._known[step]
        for checkpoint_id in published:
            self.manager.load(checkpoint_id)

    def _expect_nothing_left(self) -> None:
        """Files of published checkpoints and no others; where there was none, a new model's may come meanwhile."""

        def others() -> Names:
            own = {f"{one}/{name}" for one in self.manager.published() for name in _FILES[: self._count + 1]}
            return (self._names() - {"lease.json", ".lock"}) ^ own

        try:
            wait_until(lambda: not others(), "the published checkpoints' files are all there is")
        except AssertionError as error:
            raise AssertionError(f"{error}; missing or left: {sorted(others())}") from None


def _newest(published: list[str]) -> int:
    """The global step of the newest checkpoint; that of the beginning where there is none."""
    return int(published[0].split("-")[1]) if published else 0
