"""Sample replay memory ahead of the learner, in a thread."""

from __future__ import annotations

import queue
import threading

from relaax.replay.interfaces import ReplayMemory, ReplayTraffic, Sampled

AHEAD = 2
"""Batches that are ready while one is learned from."""
SAMPLE_SECONDS = 0.5
END_SECONDS = 2.0


class SampleAhead:
    """Draw batches of `batch_size` items, up to `AHEAD` of them before they are asked for."""

    def __init__(self, replay: ReplayMemory, batch_size: int) -> None:
        self._replay = replay
        self._batch_size = batch_size
        self._ready: queue.Queue[Sampled | Exception] = queue.Queue(AHEAD)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    @property
    def traffic(self) -> ReplayTraffic:
        """See `ReplayMemory.traffic`."""
        return self._replay.traffic

    @property
    def dropped_updates(self) -> int:
        """See `ReplayMemory.dropped_updates`."""
        return self._replay.dropped_updates

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
                sampled = self._replay.sample(self._batch_size, SAMPLE_SECONDS)
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
