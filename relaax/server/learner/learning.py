"""The loop of a learner: take a batch, learn from it, measure; the signals that end it, and its metrics."""

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
"""Time until the learner's next check of signals; longer waits are interrupted then, again and again."""
AGAIN_SECONDS = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM)


class SignalReceived(BaseException):
    """A signal asks the process to end. As KeyboardInterrupt, it passes what handles mere exceptions."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruption:
    """The first SIGINT or SIGTERM, for the main thread. Without `signals` it never comes.

    It is raised as SignalReceived between two steps, so that no library is interrupted in the middle of something.
    What waits for longer is interrupted repeatedly, as C code that calls Python may drop what is raised in it.
    """

    def __init__(self) -> None:
        self._number: int | None = None
        self._armed = False

    def check(self) -> None:
        """Raise SignalReceived if a signal has come."""
        if self._number is not None:
            raise SignalReceived(self._number)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Take note of signals. Afterwards they have their former handlers."""
        before = {number: signal.signal(number, self._handle) for number in (*_ENDING, signal.SIGALRM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Raise SignalReceived in what runs inside. Outside, as while it cleans up, signals disturb nothing."""
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
                self._come_again(WAIT_SECONDS)
        elif self._number is not None and self._armed:
            if is_exception_unsafe(frame):
                self._come_again(AGAIN_SECONDS)
            else:
                self._come_again(WAIT_SECONDS)
                raise SignalReceived(self._number)

    def _come_again(self, seconds: float) -> None:
        if self._armed:
            signal.setitimer(signal.ITIMER_REAL, seconds)


AHEAD = 2
"""Batches that are ready while one is learned from."""
SAMPLE_SECONDS = 0.5
END_SECONDS = 2.0


class SampleAhead:
    """Draw batches of `batch_size` items, up to `AHEAD` of them before they are asked for."""

    def __init__(self, replay: ReplayMemory, batch_size: int) -> None:
        self.replay = replay
        self._batch_size = batch_size
        self._ready: queue.Queue[Sampled | Exception] = queue.Queue(AHEAD)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def take(self, timeout: float) -> Sampled | None:
        """Return the next batch; None if there was none for `timeout` seconds. Raises what sampling raised."""
        try:
            found = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """End the thread, which may be waiting for replay servers: for a bounded time."""
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
    started: float = field(default_factory=time.monotonic)


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
    meter = LearnerMeter(state, client.metrics, lambda: samples.replay.traffic)
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
        state.dropped_priorities = samples.replay.dropped_updates


_DROPPED = "new priorities that it did not send: a replay server was too slow, or away"
_FAMILIES: tuple[Family[LearnerState], ...] = (
    Family("serving", "1 once the parameter server has answered, else 0", lambda v: v.phase != "starting"),
    Family("learning", "1 once there is a model, else 0", lambda v: v.phase == "learning"),
    Family("uptime_seconds", "seconds since the start of the process", lambda v: time.monotonic() - v.started),
    Family("updates_total", "updates that it has computed", lambda v: v.updates),
    Family("items_total", "items that it has learned from", lambda v: v.items),
    Family("wait_seconds_total", "seconds in which it has waited for samples", lambda v: v.waited_seconds),
    Family("dropped_priorities_total", _DROPPED, lambda v: v.dropped_priorities),
    Family("replay_size", "items in all replay servers", lambda v: v.replay_size),
    Family("global_step", "environment steps of the training", lambda v: v.global_step),
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
