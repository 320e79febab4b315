#!/usr/bin/env python3
"""Environments for tests of scaling, one per connection: `elastic_client ADDRESS CONNECTIONS RATE`.

Episodes have 40 steps. A line is printed for each admission. On SIGTERM, each environment finishes its episode and
disconnects. Then a line of JSON is printed: the number of episodes and of steps, the seconds until each admission, and
the milliseconds of each action, since SIGUSR1 if it was received.
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
    """`connections` environments, each in its own thread and with `rate` steps per second."""

    def __init__(self, address: str, connections: int, rate: float) -> None:
        self.stopping = threading.Event()
        self.admitted: list[float] = []
        self.act_ms: list[float] = []
        self.episodes = self.steps = 0
        self._address = address
        self._pause = 1.0 / rate
        self._lock = threading.Lock()
        self._admitted: set[int] = set()
        self._begun = time.monotonic()
        self._threads = [threading.Thread(target=self._run_or_exit, args=(index,)) for index in range(connections)]

    def run(self) -> None:
        """Run all environments until they end."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            while thread.is_alive():  # signals are handled between two joins
                thread.join(0.2)

    def reset_times(self) -> None:
        """Discard the recorded times of actions."""
        self.act_ms = []

    def _run_or_exit(self, index: int) -> None:
        try:
            self._run(index)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # otherwise the test waits for this environment

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
            if index not in self._admitted:
                self._admitted.add(index)
                self.admitted.append(time.monotonic() - self._begun)
                print("admitted", len(self.admitted), flush=True)


def main(address: str, connections: int, rate: float) -> None:
    """Run the environments and print the result."""
    environments = Environments(address, connections, rate)
    signal.signal(signal.SIGTERM, lambda *_: environments.stopping.set())
    signal.signal(signal.SIGUSR1, lambda *_: environments.reset_times())
    environments.run()
    found = {"episodes": environments.episodes, "steps": environments.steps, "admitted": environments.admitted}
    print(json.dumps({**found, "act_ms": environments.act_ms}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
