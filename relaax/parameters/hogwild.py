"""The bridge of workers that update the parameters by themselves, in memory and without locks (Hogwild!).

Recht et al. 2011, and as A3C does it (Mnih et al. 2016, sections 4 and 4.1): several workers may write to an element at
the same time, and then one of their updates of it is lost. What else is given up stands in docs/operating.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from relaax.optim import kernels
from relaax.optim.recycled import Recycled, own_memory
from relaax.optim.vector import is_finite
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.base import FlatVector, Pulled, Pushed
from relaax.parameters.channel import Target
from relaax.parameters.grpc_bridge import GrpcBridge, PushAnswer
from relaax.parameters.link import Link
from relaax.parameters.shared_memory import NoSharedMemory, SharedMemory, Trouble

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LiveShard:
    """The vectors of a shard that everybody writes to, and the update with its constants."""

    parameters: FlatVector
    slot: FlatVector
    kernel: kernels.Kernel
    numbers: Sequence[np.float32]

    def apply(self, gradient: FlatVector, learning_rate: float, copy: FlatVector) -> None:
        """One pass over parameters, slot and gradient. `copy` gets what the parameters then are."""
        self.kernel(self.parameters, self.slot, copy, gradient, np.float32(learning_rate), *self.numbers)


def live_shard(memory: SharedMemory, asker: pb.PullRequest) -> tuple[LiveShard, float]:
    """The shard at the other end of a connection, and the learning rate now. Raises NoSharedMemory."""
    message, parameters = memory.live(0, asker)
    fused = kernels.FUSED.get(message.optimizer)
    if fused is None or message.vectors != 2 or len(message.numbers) != fused[1]:
        raise NoSharedMemory(f"this worker does not know its optimizer {message.optimizer!r}", Trouble.LASTING)
    _, slot = memory.live(1, asker)
    numbers = [np.float32(number) for number in message.numbers]
    return LiveShard(parameters, slot, kernels.fused(fused[0]), numbers), message.learning_rate


class HogwildBridge(GrpcBridge):
    """Applies gradients to the shards' memory, then tells them: steps, metrics and statistics count as always.

    Every shard must be on this host. A connection that was lost is made anew before the next update; there is no other
    way for gradients.
    """

    def __init__(
        self, servers: Sequence[Target | str] | str, *, timeout: float = 15.0, unavailable_after: float = 60.0
    ) -> None:
        super().__init__(servers, timeout=timeout, unavailable_after=unavailable_after, way="hogwild")
        self._live: dict[int, LiveShard] = {}
        self._rate = 0.0
        self._copies: Recycled | None = None

    def push(
        self,
        gradient: FlatVector | None,
        env_steps: int,
        want_parameters: bool = True,
        *,
        loss: float | None = None,
        withheld: bool = False,
    ) -> Pushed:
        self._check(gradient)
        if gradient is None or not is_finite(gradient):  # the shard discards and counts what is not finite
            return super().push(gradient, env_steps, want_parameters, loss=loss, withheld=withheld)
        if not self._is_connected():
            try:
                self._for_a_while(self._connect_again)
            except NoSharedMemory as why:
                self._register_again(f"does not share its memory any more ({why})")
                return replace(super().push(None, env_steps), discarded="incarnation")
        if self._copies is None:
            self._copies = Recycled(self._parameters, own_memory)
        gradient, parameters = np.ascontiguousarray(gradient), self._copies.take()
        for link in self._links:
            part = slice(link.start, link.end)
            self._live[link.shard].apply(gradient[part], self._rate, parameters[part])
        parameters = parameters.view()
        parameters.flags.writeable = False
        common = self._common(env_steps, want_parameters, withheld)
        common.applied = True
        carriers, rolled_back = self._push(common, None)
        if not rolled_back:
            self._rate = carriers[0].message.learning_rate
        return self._pushed(carriers, rolled_back, partial(self._taken, parameters) if want_parameters else None)

    def _is_connected(self) -> bool:
        return all(link.memory is not None and link.shard in self._live for link in self._links)

    def _connect_again(self) -> None:
        """Get back what was lost. Raises NotYet, and NoSharedMemory where only registering again can help."""
        for link in self._links:
            if link.memory is not None and link.shard in self._live:
                continue
            self._live.pop(link.shard, None)
            try:
                link.share_again()
                self._map(link)
            except NoSharedMemory as why:
                if why.trouble is Trouble.MOMENTARY:
                    raise self._must_share(link, why, "") from None
                raise

    def _share_memory(self, link: Link, response: pb.RegisterResponse) -> None:
        super()._share_memory(link, response)
        assert self._registration is not None, "it registers"
        self._live.pop(link.shard, None)
        if self._registration.exploit:
            return  # it only reads
        try:
            rate = self._map(link)
        except NoSharedMemory as why:
            sentence = f"parameter server {link.address} cannot do with bridge hogwild: {why}; set bridge to auto"
            raise self._must_share(link, why, sentence) from None
        _log.info("parameter server %s: updated in that memory, without locks", link.address)
        if link.shard == 0:
            self._rate = rate

    def _map(self, link: Link) -> float:
        """Make the shard's vectors this worker's too. Returns the learning rate now. Raises NoSharedMemory."""
        assert link.memory is not None, "else there was an error"
        asker = pb.PullRequest(worker_id=self._worker_id, incarnation=self._incarnation)
        self._live[link.shard], rate = live_shard(link.memory, asker)
        return rate

    def _taken(self, parameters: FlatVector, carriers: Sequence[PushAnswer]) -> Pulled:
        """`parameters` are those of the worker's own update, with what others have made of them by then."""
        for link, carrier in zip(self._links, carriers, strict=True):
            link.version = carrier.message.version
        first = carriers[0].message
        return self._hold(parameters, first.version, first.statistics)
