#!/usr/bin/env python3
"""Environments that come and go: `elastic_client ADDRESS CONNECTIONS RATE`, one on each connection.

An episode has 40 steps. A line is printed with each admission. On SIGTERM each ends its episode and leaves; then one
line of JSON: episodes that ended, steps, seconds until each was admitted, milliseconds of each action since SIGUSR1, if
there was one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback

import numpy as np

from relaax.client import Box, Client, Discrete

STEPS = 40
STATE = np.zeros(4, np.float32)


class Environments:
    """So many, each in a thread."""

    def __init__(self, address: str, connections: int, rate: float) -> None:
        self.stopping = threading.Event()
        self.admitted: list[float] = []
        self.act_ms: list[float] = []
        self.episodes = self.steps = 0
        self._address = address
        self._pause = 1.0 / rate
        self._lock = threading.Lock()
        self._seen: set[int] = set()
        self._begun = time.monotonic()
        self._threads = [threading.Thread(target=self._whole, args=(index,)) for index in range(connections)]

    def run(self) -> None:
        """Until all have ended."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            while thread.is_alive():  # a signal is handled between two of these
                thread.join(0.2)

    def measure_anew(self) -> None:
        """Forget what actions took so far."""
        self.act_ms = []

    def _whole(self, index: int) -> None:
        try:
            self._run(index)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # one that is missing would be waited for

    def _run(self, index: int) -> None:
        box = Box(shape=(4,))
        with Client(self._address, observation_space=box, action_space=Discrete(2), retry_seconds=None) as client:
            due = time.monotonic() + self._pause * (index % 7) / 7
            while not self.stopping.is_set():
                client.init(STATE)
                self._note_admission(index)
                for _ in range(STEPS):
                    due = max(due + self._pause, time.monotonic() - self._pause)
                    time.sleep(max(0.0, due - time.monotonic()))
                    begin = time.perf_counter()
                    client.send(1.0, STATE)
                    self.act_ms.append((time.perf_counter() - begin) * 1e3)
                client.reset(1.0)
                with self._lock:
                    self.episodes += 1
                    self.steps += STEPS + 1

    def _note_admission(self, index: int) -> None:
        with self._lock:
            if index not in self._seen:
                self._seen.add(index)
                self.admitted.append(time.monotonic() - self._begun)
                print("admitted", len(self.admitted), flush=True)


def main(address: str, connections: int, rate: float) -> None:
    """Run them."""
    environments = Environments(address, connections, rate)
    signal.signal(signal.SIGTERM, lambda *_: environments.stopping.set())
    signal.signal(signal.SIGUSR1, lambda *_: environments.measure_anew())
    environments.run()
    found = {"episodes": environments.episodes, "steps": environments.steps, "admitted": environments.admitted}
    print(json.dumps({**found, "act_ms": environments.act_ms}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
