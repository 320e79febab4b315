"""Hostile clients in a process of their own, until they are killed: `hostile_clients.py HOST:PORT SEED FIRST THREADS`.

Prints the number and the kind of each conversation that is over.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.hostile_traffic import converse

PAUSE = 0.6  # seconds between two conversations of a client, at most


def work(address: str, seed: int, numbers: Iterator[int]) -> None:
    for number in numbers:
        try:
            end = converse(address, seed, number)
        except OSError as error:
            end = type(error).__name__
        print(number, end, flush=True)
        time.sleep(random.uniform(0.0, PAUSE))


if __name__ == "__main__":
    os.nice(10)  # it stands for other machines, and is not to take this one's processors from honest clients
    target, seed, first, threads = sys.argv[1], *map(int, sys.argv[2:])
    shared = count(first)
    for _ in range(threads):
        threading.Thread(target=work, args=(target, seed, shared)).start()
