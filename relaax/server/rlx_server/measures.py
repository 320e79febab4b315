"""What a worker measures while it serves: how long answers take, and what it takes of the machine."""

from __future__ import annotations

from relaax.algorithm_base import BridgeBase
from relaax.metrics.system import Sampler
from relaax.rlx import Actions, Message, Ping, ServerMessage, Step

ACT, TURNAROUND = "latency/act_ms", "latency/turnaround_ms"


class Measures:
    """Tells a bridge. Used by the thread that answers, but for the sampler's beat."""

    def __init__(self, bridge: BridgeBase, sampler: Sampler) -> None:
        self._bridge = bridge
        self._sampler = sampler
        self._acted_at: float | None = None

    def answered(self, message: Message, answer: ServerMessage, read_at: float, now: float) -> None:
        """`message`, whose last byte was read at `read_at`, has its answer now, both in seconds of one clock."""
        if isinstance(message, Step):
            self._bridge.sample(ACT, 1e3 * (now - read_at))
            if self._acted_at is not None:
                self._bridge.sample(TURNAROUND, 1e3 * (read_at - self._acted_at))
            if self._sampler.found:
                for name, value in self._sampler.take().items():
                    self._bridge.gauge(name, value)
        if not isinstance(message, Ping):
            self._acted_at = now if isinstance(answer, Actions) else None
