"""Several shards of a parameter server in this process, each on its own port."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.hosting.fingerprint import first_difference
from relaax.server.checkpoints.checkpointing import Checkpointer
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.parameter_server.command.server import Server, Timing
from relaax.server.parameter_server.coordination.follower import Follower
from relaax.server.parameter_server.coordination.leader import Leader
from relaax.server.parameter_server.coordination.members import introduction
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ModelSpec, ShardPosition
from relaax.transport.channel import Target
from support.parameter_servers import Models
from support.processes import wait_until

Factory = Callable[[str], ModelSpec]


def same_fingerprint(manifest: Mapping[str, Any]) -> str:
    """Return the fingerprint in a checkpoint, so that the configuration counts as unchanged."""
    return json.dumps(manifest["fingerprint"])


class OneShard:
    """One shard, with its main loop in a thread."""

    def __init__(
        self,
        position: ShardPosition,
        models: Factory,
        directory: Path | None,
        first: str,
        address: str = "127.0.0.1:0",
        description: str = "{}",
        fingerprints: Callable[[Mapping[str, Any]], str] = same_fingerprint,
        parameters: int = 2**20,
    ) -> None:
        self.ends = EndRequests()
        self.core = ParameterServerCore(
            models, first_difference, on_finished=lambda: self.ends.put(Reason.FINISHED), position=position
        )
        self.manager = None if directory is None else CheckpointManager(LocalStore(directory))
        own = introduction(position, description, "" if directory is None else str(directory))
        self.checkpointer = None
        self.shards: Leader | Follower
        if position.index:
            self.shards = Follower(self.core, own, Target(first), fingerprints, self.manager, self.ends)
        else:
            self.shards = leader = Leader(self.core, own, fingerprints, self.manager)
            if self.manager is not None:
                told = (self.core.checkpoint_saved, 0.1)
                self.checkpointer = Checkpointer(leader, leader.cut, 1000.0, *told, on_late=self.core.checkpoint_late)
        timing = Timing(grace=20.0, linger=0.0, drain=0.2)
        self.server = Server(
            self.core, address, parameters, self.ends, self.checkpointer, timing=timing, coordinator=self.shards
        )
        self.address = self.server.address
        self.ended: tuple[Reason, bool] | None = None
        self._thread = threading.Thread(target=self._run)
        self.server.start()
        self._thread.start()

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        assert self.core.model is not None
        return self.core.model.shard.pull()[1]

    @property
    def version(self) -> int:
        assert self.core.model is not None
        return self.core.model.shard.counters.version

    def stop(self, reason: Reason = Reason.TERMINATED) -> None:
        """Request the end, as a signal does, and wait for it."""
        self.ends.put(reason)
        self.join()

    def join(self) -> tuple[Reason, bool] | None:
        """Wait until the shard has ended."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.ended

    def vanish(self) -> None:
        """End without a message to other shards, as a killed process does."""
        self.server._grpc.stop(None).wait()
        if isinstance(self.shards, Follower):
            self.shards._ended.set()
            self.shards._requests.put(None)
        else:
            self.shards._stop.set()
        self.ends.put(Reason.SUPERSEDED)
        self.join()

    def _run(self) -> None:
        self.ended = self.server.run()


class Shards:
    """All shards of one parameter server."""

    def __init__(self, count: int, models: Factory, directory: Path | None, **options: Any) -> None:
        self._models, self._directory, self._options = models, directory, options
        self.count = count
        self.all: list[OneShard] = []
        for index in range(count):
            self.all.append(self._start(index, "127.0.0.1:0"))

    @property
    def addresses(self) -> list[str]:
        """Addresses of all shards, shard 0 first."""
        return [shard.address for shard in self.all]

    @property
    def leader(self) -> OneShard:
        """Shard 0."""
        return self.all[0]

    @property
    def parameters(self) -> npt.NDArray[np.float32]:
        """The whole vector."""
        return np.concatenate([shard.parameters for shard in self.all])

    def save(self) -> bool:
        """Save a checkpoint now."""
        assert self.leader.checkpointer is not None
        return self.leader.checkpointer.save()

    def wait_serving(self) -> None:
        """Wait until all shards serve."""
        wait_until(lambda: all(not shard.core.access.closed for shard in self.all), "the shards serve")

    def restart(self, index: int) -> None:
        """Restart an ended shard at the same address."""
        self.all[index].ends.close()
        self.all[index] = self._start(index, self.all[index].address)

    def stop(self) -> None:
        """Request the end of all shards at once, then wait until all have ended."""
        for shard in self.all:
            if shard.ended is None:
                shard.ends.put(Reason.TERMINATED)
        for shard in self.all:
            shard.join()

    def close(self) -> None:
        for shard in self.all:
            shard.ends.close()

    def _start(self, index: int, address: str) -> OneShard:
        first = self.all[0].address if self.all else ""
        return OneShard(
            ShardPosition(index, self.count), self._models, self._directory, first, address, **self._options
        )


@contextmanager
def sharded(
    count: int, models: Factory | None = None, directory: Path | None = None, **options: Any
) -> Iterator[Shards]:
    """Start shards, wait until they serve, and end them at the end of the block."""
    shards = Shards(count, models or Models(), directory, **options)
    try:
        shards.wait_serving()
        yield shards
    finally:
        shards.stop()
        shards.close()
