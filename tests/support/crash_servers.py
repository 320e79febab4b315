"""Parameter servers that are killed at chosen moments of saving a checkpoint."""

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

# Large enough that writing a part takes a while.
_ALGORITHM = ("algorithm.max_global_step=1e9", "algorithm.network.dense=[500, 500]")
_SERVER = ("relaax-parameter-server.checkpoint_interval=0.2", "relaax-parameter-server.checkpoints_kept=2")
_PATIENCE = 30.0  # seconds to wait for a moment
_STEPS = 10
_FILES = ("manifest.json", "shard-0.safetensors", "shard-1.safetensors")

Names = frozenset[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """Paths below the directory of checkpoints, before a checkpoint and now."""

    before: Names
    now: Names

    def has_new(self, *endings: str) -> bool:
        """Return whether there is a new file with one of these endings."""
        return any(name.endswith(endings) for name in self.now - self.before)

    def is_writing(self) -> bool:
        """Return whether a file of a new checkpoint is being written."""
        return any("/.unfinished-" in name for name in self.now - self.before)


MOMENTS: dict[str, Callable[[Listing], bool]] = {
    "a part is being written": Listing.is_writing,
    "a part is saved": lambda listing: listing.has_new(".safetensors"),
    "the last part is saved": lambda listing: listing.has_new("/shard-1.safetensors"),
    "the lease is being renewed": lambda listing: any(name.startswith(".unfinished-") for name in listing.now),
    "the manifest is being written": lambda listing: listing.has_new(".safetensors") and listing.is_writing(),
    "the checkpoint is published": lambda listing: listing.has_new("/manifest.json"),
    "an old checkpoint is being deleted": lambda listing: any(
        name.endswith("/manifest.json") for name in listing.before - listing.now
    ),
}


class CrashedServers:
    """`count` shards with a worker. Shards are killed and restarted."""

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
        self.reached: list[str] = []
        """The moments that occurred in time."""

    def kill_once(self, moment: str, victim: int) -> None:
        """Kill a shard at a moment, restart it, and check that it has the previous state or the new one."""
        with parameter_client(self._shards.addresses, unavailable_after=200.0) as client:
            client.register(worker(self._config, _ALGORITHM))
            deadline = time.monotonic() + _PATIENCE
            while True:
                published = self.manager.published()
                before, since = self._names(), client.global_step
                parameters = trained(client, 1, seed=self._random.randrange(2**32), env_steps=_STEPS)
                self._known[client.global_step] = parameters.tobytes()
                if self._occurs(MOMENTS[moment], before, published):
                    self.reached.append(moment)
                    break
                if time.monotonic() > deadline:
                    break
            # The newest checkpoint of a new model may be older than the state before the push. Then the next checkpoint
            # is of that state or of the state after the push.
            allowed = {client.global_step, since, _newest(published)}
            time.sleep(self._random.choice((0.0, self._random.random() * 0.01)))
            self._shards.running[victim].kill()
        self._shards.restart(victim)
        self._expect_one_of(allowed)
        if victim == 0:
            self._expect_no_leftovers()

    def verify(self) -> None:
        """Check that `relaax checkpoints verify` finds no damage, once there is a checkpoint.

        Each kill may have come before the first checkpoint of a new model was published.
        """
        with parameter_client(self._shards.addresses, unavailable_after=200.0) as client:
            client.register(worker(self._config, _ALGORITHM))
            trained(client, 1, seed=0, env_steps=_STEPS)
            wait_until(lambda: bool(self.manager.published()), "a checkpoint is published")
        checked = self._processes.start("relaax", "checkpoints", "verify", self._directory)
        assert checked.wait(60) == 0, checked.report()

    def _names(self) -> Names:
        return frozenset(
            os.path.relpath(os.path.join(folder, name), self._directory)
            for folder, _, names in os.walk(self._directory)
            for name in names
        )

    def _occurs(self, moment: Callable[[Listing], bool], before: Names, published: list[str]) -> bool:
        """Return whether the moment occurs before the next checkpoint is published and an old one is deleted."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            now = self._names()
            if moment(Listing(before, now)):
                return True
            new = {name for name in now - before if name.endswith("/manifest.json")}
            gone = {name for name in before - now if name.endswith("/manifest.json")}
            if new and (gone or len(published) < 2):
                return False
        return False

    def _expect_one_of(self, allowed: set[int]) -> None:
        with parameter_client(self._shards.addresses, unavailable_after=200.0) as client:
            registered = client.register(worker(self._config, _ALGORITHM))
            step = registered.global_step
            assert step in allowed
            published = self.manager.published()
            assert step == _newest(published), "the newest checkpoint is restored"
            if step in self._known:
                assert client.pull().parameters.tobytes() == self._known[step]
        for checkpoint_id in published:
            self.manager.load(checkpoint_id)

    def _expect_no_leftovers(self) -> None:
        """Wait until there are only the files of published checkpoints."""

        def others() -> Names:
            own = {f"{one}/{name}" for one in self.manager.published() for name in _FILES[: self._count + 1]}
            return (self._names() - {"lease.json", ".lock"}) ^ own

        try:
            wait_until(lambda: not others(), "there are only the files of published checkpoints")
        except AssertionError as error:
            raise AssertionError(f"{error}; missing or left: {sorted(others())}") from None


def _newest(published: list[str]) -> int:
    """Return the global step of the newest checkpoint; 0 without checkpoints."""
    return int(published[0].split("-")[1]) if published else 0
