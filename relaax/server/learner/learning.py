"""The loop of a learner, with its signals, metrics and status."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Literal, NoReturn

from relaax import __version__
from relaax.algorithm_base import LearnerBase
from relaax.algorithm_base.learner import record_sample
from relaax.parameters.interfaces import MetricsRecorder, ParameterClientBase
from relaax.replay.interfaces import ReplayMemory, ReplayTraffic, Sampled
from relaax.server.address import listen
from relaax.server.command.logs import is_exception_unsafe
from relaax.server.status import Families, Family, StatusServer, registry_of

WAIT_SECONDS = 1.0
"""Seconds from a signal until a step is interrupted, and between repeated interruptions."""
REPEAT_SECONDS = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM)


class SignalReceived(BaseException):
    """A signal to end the process. Like KeyboardInterrupt, it is not caught by `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """The first SIGINT or SIGTERM, for the main thread. Signals are received only within `signals`.

    SignalReceived is raised between two steps, so that libraries are not interrupted during an operation. A step that
    lasts longer than `WAIT_SECONDS` is interrupted. This is repeated, because C code that calls Python may discard an
    exception.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._armed = False

    def check(self) -> None:
        """Raise SignalReceived if a signal was received."""
        if self._number is not None:
            raise SignalReceived(self._number)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Handle signals inside the block, and restore their former handlers afterwards."""
        before = {number: signal.signal(number, self._handle) for number in (*_ENDING, signal.SIGALRM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Raise SignalReceived inside the block. Outside, such as during cleanup, signals do not interrupt."""
        self._armed = True
        try:
            self.check()
            yield
        finally:
            self._armed = False
            if self._number is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDING:
            if self._number is None:
                self._number = number
                self._schedule_alarm(WAIT_SECONDS)
        elif self._number is not None and self._armed:
            if is_exception_unsafe(frame):
                self._schedule_alarm(REPEAT_SECONDS)
            else:
                self._schedule_alarm(WAIT_SECONDS)
                raise SignalReceived(self._number)

    def _schedule_alarm(self, seconds: float) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, seconds)


MAX_PREFETCHED = 1
"""Number of batches that are ready in advance. One more is at hand, and the next one is requested from the shards."""
SAMPLE_SECONDS = 0.5
END_SECONDS = 2.0


class SamplePrefetcher:
    """A thread that samples up to `MAX_PREFETCHED` batches of `batch_size` items in advance."""

    def __init__(self, replay: ReplayMemory, batch_size: int) -> None:
        self.replay = replay
        self._batch_size = batch_size
        self._ready: queue.Queue[Sampled | Exception] = queue.Queue(MAX_PREFETCHED)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def next_batch(self, timeout: float) -> Sampled | None:
        """Return the next batch; None after `timeout` seconds. Raises the error of the sampling thread."""
        try:
            found = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """Stop the thread, and wait for it for at most `END_SECONDS`."""
        self._ending.set()
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                sampled = self.replay.sample(self._batch_size, SAMPLE_SECONDS)
                if sampled is not None:
                    self._put(sampled)
        except Exception as error:
            self._put(error)

    def _put(self, found: Sampled | Exception) -> None:
        while not self._ending.is_set():
            try:
                self._ready.put(found, timeout=SAMPLE_SECONDS)
                return
            except queue.Full:
                continue


IDLE_SECONDS = 1.0
"""Seconds without samples after which a learner calls the parameter server: otherwise the server would deregister it.
The answer also says whether training has ended."""
METRICS_SECONDS = 1.0


@dataclass(slots=True)
class LearnerState:
    """The state of a learner for its status port, with totals since the process start. Written by one thread."""

    learner: int
    phase: Literal["starting", "waiting", "learning"] = "starting"
    """`waiting` lasts until the first worker has registered the model."""
    updates: int = 0
    items: int = 0
    waited_seconds: float = 0.0
    replay_size: int | None = None
    global_step: int = 0
    dropped_priorities: int = 0
    started: float = field(default_factory=time.monotonic)


class LearnerMeter:
    """Rates of a learner and its replay memory, recorded as metrics about once a second.

    `traffic` returns the numbers of items that all clients inserted and sampled.
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

    def add_wait(self, seconds: float) -> None:
        """Count time without samples."""
        self._state.waited_seconds += seconds
        self._record()

    def add_update(self, sampled: Sampled) -> None:
        """Count an update."""
        state = self._state
        state.updates += 1
        state.items += len(sampled.ages)
        state.replay_size = sampled.size
        record_sample(self._metrics, sampled)
        self._record()

    def _record(self) -> None:
        seconds = self._clock() - self._since
        if seconds < METRICS_SECONDS:
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
    samples: SamplePrefetcher,
    client: ParameterClientBase,
    state: LearnerState,
    interruption: Interruption,
) -> NoReturn:
    """Learn from batches until an exception: TrainingEnded, or an error of a server or of the learner."""
    meter = LearnerMeter(state, client.metrics, lambda: samples.replay.traffic)
    while True:
        interruption.check()
        begun = time.monotonic()
        sampled = samples.next_batch(IDLE_SECONDS)
        meter.add_wait(time.monotonic() - begun)
        if sampled is None:
            client.flush()
        else:
            learner.step(sampled)
            meter.add_update(sampled)
        state.global_step = client.global_step
        state.dropped_priorities = samples.replay.dropped_updates


_DROPPED = "priority updates that were not sent, as a replay server was too slow or unavailable"
_FAMILIES: tuple[Family[LearnerState], ...] = (
    Family("serving", "1 after the first answer of the parameter server, else 0", lambda v: v.phase != "starting"),
    Family("learning", "1 if the parameter server has a model, else 0", lambda v: v.phase == "learning"),
    Family("uptime_seconds", "seconds since the start of the process", lambda v: time.monotonic() - v.started),
    Family("updates_total", "computed updates", lambda v: v.updates),
    Family("items_total", "items used in updates", lambda v: v.items),
    Family("wait_seconds_total", "seconds of waiting for samples", lambda v: v.waited_seconds),
    Family("dropped_priorities_total", _DROPPED, lambda v: v.dropped_priorities),
    Family("replay_size", "items in all replay servers", lambda v: v.replay_size),
    Family("global_step", "environment steps of training", lambda v: v.global_step),
)
FAMILIES = tuple(replace(family, name=f"relaax_learner_{family.name}") for family in _FAMILIES)


def status_server(address: str, state: LearnerState) -> StatusServer:
    """Return a status server that is bound to `address` and not started. Raises AddressError."""

    def healthy() -> tuple[bool, Mapping[str, Any]]:
        now = replace(state)
        return now.phase != "starting", {
            "server": "relaax-learner",
            "version": __version__,
            "learner": now.learner,
            "phase": now.phase,
            "updates": now.updates,
            "global_step": now.global_step,
        }

    return StatusServer(listen(address), healthy, registry_of(Families(FAMILIES, lambda: replace(state))))
