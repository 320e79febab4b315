"""Updates that a worker applies itself, in the shards' memory and without locks (Hogwild!).

Recht et al. 2011, and A3C (Mnih et al. 2016, sections 4 and 4.1). If several workers write to an element at the same
time, one of the updates to that element is lost. docs/tune.md lists the other costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from relaax.machine_code import Kernel
from relaax.nn.recycled_memory import VectorPool, own_memory
from relaax.optim.host_optimizers import FUSED
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.shard_client import ShardClient, SharedMemory
from relaax.transport.local_socket import FailureKind, NoSharedMemory


@dataclass(frozen=True, slots=True)
class LiveShard:
    """The vectors of a shard that all workers write to, and the compiled update with its constants."""

    parameters: FlatVector
    slots: Sequence[FlatVector]
    kernel: Kernel
    numbers: Sequence[np.float32]

    def apply(self, gradient: FlatVector, learning_rate: float, copy: FlatVector) -> None:
        """Update parameters and slots in one pass. `copy` gets the new parameters."""
        self.kernel(self.parameters, *self.slots, copy, gradient, np.float32(learning_rate), *self.numbers)


def live_shard(memory: SharedMemory, identity: pb.PullRequest) -> tuple[LiveShard, float]:
    """Return the shard at the other end of `memory`, and its learning rate now. Raises NoSharedMemory."""
    message, parameters = memory.live(0, identity)
    rule = FUSED.get(message.optimizer)
    if rule is None or message.vectors != 1 + len(rule.slots) or len(message.numbers) != rule.numbers:
        raise NoSharedMemory(f"this worker does not support its optimizer {message.optimizer!r}", FailureKind.PERMANENT)
    slots = [memory.live(index, identity)[1] for index in range(1, message.vectors)]
    numbers = [np.float32(number) for number in message.numbers]
    return LiveShard(parameters, slots, rule.compiled(), numbers), message.learning_rate


class HogwildUpdates:
    """Updates that the worker applies in the memory of every shard. All shards must be on this host."""

    def __init__(self) -> None:
        self.learning_rate = 0.0
        """The learning rate that shard 0 sent last."""
        self._live: dict[int, LiveShard] = {}
        self._copies: VectorPool | None = None

    def is_connected(self, links: Sequence[ShardClient]) -> bool:
        """Return whether every shard can be updated."""
        return all(link.memory is not None and link.shard in self._live for link in links)

    def connect(self, link: ShardClient, identity: pb.PullRequest) -> None:
        """Map the vectors of a shard that shares memory. Raises NoSharedMemory."""
        self._live.pop(link.shard, None)
        assert link.memory is not None, "`share_memory` raises if there is no connection"
        self._live[link.shard], rate = live_shard(link.memory, identity)
        if link.shard == 0:
            self.learning_rate = rate

    def reconnect(self, link: ShardClient, identity: pb.PullRequest) -> None:
        """Map the vectors of a shard again if its memory was lost. Raises NoSharedMemory."""
        if link.memory is not None and link.shard in self._live:
            return
        self._live.pop(link.shard, None)
        link.transport.connect()
        rate = self.learning_rate
        self.connect(link, identity)
        self.learning_rate = rate  # keep the rate of the last push

    def apply(self, gradient: FlatVector, links: Sequence[ShardClient]) -> FlatVector:
        """Update every shard with its part of `gradient`, float32 [P]. Return the new parameters, read-only."""
        if self._copies is None:
            self._copies = VectorPool(len(gradient), own_memory)
        gradient, parameters = np.ascontiguousarray(gradient), self._copies.acquire()
        for link in links:
            part = slice(link.start, link.end)
            self._live[link.shard].apply(gradient[part], self.learning_rate, parameters[part])
        updated: FlatVector = parameters.view()
        updated.flags.writeable = False
        return updated
