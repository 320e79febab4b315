"""A process of hostile clients that runs until it is killed: `hostile_clients.py HOST:PORT SEED FIRST THREADS`.

Prints the number and the kind of each finished connection.
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

from support.hostile_traffic import run_connection

PAUSE = 0.6  # maximum seconds between two connections of a client


def work(address: str, seed: int, numbers: Iterator[int]) -> None:
    for number in numbers:
        try:
            kind = run_connection(address, seed, number)
        except OSError as error:
            kind = type(error).__name__
        print(number, kind, flush=True)
        time.sleep(random.uniform(0.0, PAUSE))


if __name__ == "__main__":
    os.nice(10)  # an attacker on another machine would not use the processors of honest clients
    target, seed, first, threads = sys.argv[1], *map(int, sys.argv[2:])
    shared = count(first)
    for _ in range(threads):
        threading.Thread(target=work, args=(target, seed, shared)).start()
