"""The loop of a learner: take a batch, learn from it, measure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

from relaax.algorithm_base import LearnerBase
from relaax.algorithm_base.learner import record_sample
from relaax.parameters.interfaces import MetricsRecorder, ParameterClientBase
from relaax.replay.interfaces import ReplayTraffic, Sampled
from relaax.server.learner.interruption import Interruption
from relaax.server.learner.sampling import SampleAhead

IDLE_SECONDS = 1.0
"""How long a learner without samples waits before it says so: the parameter server would take it for gone, and tells it
whether training has ended."""
TELL_SECONDS = 1.0


@dataclass(slots=True)
class LearnerState:
    """What a learner does, for its status port; written by one thread. Totals since the start of the process."""

    learner: int
    phase: Literal["starting", "waiting", "learning"] = "starting"
    """Waiting: for the first worker, which brings the model."""
    updates: int = 0
    items: int = 0
    waited_seconds: float = 0.0
    replay_size: int | None = None
    global_step: int = 0
    dropped_priorities: int = 0


class LearnerMeter:
    """Measure a learner and its memory, and record that as metrics about once a second.

    `traffic` tells what went into the memory and was drawn from it, by everybody.
    """

    def __init__(
        self,
        state: LearnerState,
        metrics: MetricsRecorder,
        traffic: Callable[[], ReplayTraffic],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._metrics = metrics
        self._read_traffic = traffic
        self._clock = clock
        self._since = clock()
        self._updates, self._waited = state.updates, state.waited_seconds
        self._traffic = traffic()

    def waited(self, seconds: float) -> None:
        """Count time without samples."""
        self._state.waited_seconds += seconds
        self._tell()

    def learned(self, sampled: Sampled) -> None:
        """Count an update."""
        state = self._state
        state.updates += 1
        state.items += len(sampled.ages)
        state.replay_size = sampled.size
        record_sample(self._metrics, sampled)
        self._tell()

    def _tell(self) -> None:
        seconds = self._clock() - self._since
        if seconds < TELL_SECONDS:
            return
        updates, waited = self._state.updates - self._updates, self._state.waited_seconds - self._waited
        self._metrics.scalar("learner/updates_per_second", updates / seconds)
        self._metrics.scalar("learner/wait_fraction", min(1.0, waited / seconds))
        traffic = self._read_traffic()
        inserts, samples = traffic.inserts - self._traffic.inserts, traffic.samples - self._traffic.samples
        self._metrics.scalar("replay/inserts_per_second", inserts / seconds)
        self._metrics.scalar("replay/samples_per_second", samples / seconds)
        if inserts:
            self._metrics.scalar("replay/samples_per_insert", samples / inserts)
        self._traffic = traffic
        self._since += seconds
        self._updates, self._waited = self._state.updates, self._state.waited_seconds


def learn(
    learner: LearnerBase,
    samples: SampleAhead,
    client: ParameterClientBase,
    state: LearnerState,
    interruption: Interruption,
) -> NoReturn:
    """Learn from batch after batch. Ends by an exception: TrainingEnded, or what the servers or the learner raise."""
    meter = LearnerMeter(state, client.metrics, lambda: samples.traffic)
    while True:
        interruption.check()
        begun = time.monotonic()
        sampled = samples.take(IDLE_SECONDS)
        meter.waited(time.monotonic() - begun)
        if sampled is None:
            client.flush()
        else:
            learner.step(sampled)
            meter.learned(sampled)
        state.global_step = client.global_step
        state.dropped_priorities = samples.dropped_updates
