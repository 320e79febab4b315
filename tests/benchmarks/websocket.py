#!/usr/bin/env python3
"""The cost of WebSocket: the p50 of an action over WebSocket and over TCP, from one client program.

Calls of `Client.send` are timed, with one environment per connection. TCP and WebSocket alternate. The first agent is
da3c's, as in `config/da3c_gym_cartpole.yaml`; it also learns during the measurement. The second agent computes nothing,
so that only the wire is measured. The ratio is the median of the rounds' ratios. The exit code is 1 if da3c's ratio
exceeds the bar.

    python tests/benchmarks/websocket.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.client import Client
from relaax.rlx import Box, Discrete
from support.fuzz_run import ALGORITHM
from support.offline import start_offline_server
from support.processes import Processes
from support.service import started_service

BAR = 1.3
NETWORK = {"dense": [64, 64], "activation": "tanh", "separate": True}
SPACES: dict[str, Any] = {
    "CartPole": Box(shape=(4,)),
    "Atari": Box(0, 255, (84, 84), np.uint8),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The p50 of an action over WebSocket and over TCP.")
    parser.add_argument("--rounds", type=int, default=20, help="number of rounds (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="steps of a round over each (%(default)s)")
    options = parser.parse_args()
    print("| agent | observation | TCP, ms | WebSocket, ms | ratio |\n|---|---|---|---|---|")
    ratios = []
    for agent, space in (("da3c", "CartPole"), ("none", "CartPole"), ("none", "Atari")):
        with served(agent) as address:
            tcp, websocket, ratio = measured(address, SPACES[space], options.rounds, options.steps)
        print(f"| {agent} | {space} | {1e3 * tcp:.3f} | {1e3 * websocket:.3f} | {ratio:.2f} |", flush=True)
        ratios.append(ratio)
    return int(ratios[0] > BAR)


@contextmanager
def served(agent: str) -> Iterator[str]:
    """Start a server with this agent and yield its address."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if agent == "da3c":
            yield stack.enter_context(started_service(folder, network=NETWORK, episode_len=5)).address
        else:
            processes = stack.enter_context(Processes(folder))
            yield start_offline_server(processes, folder, algorithm={"path": str(ALGORITHM)}, memory_reserve=0)[1]


def measured(address: str, space: Box, rounds: int, steps: int) -> tuple[float, float, float]:
    """Return the p50 over TCP and over WebSocket in seconds, and their ratio."""
    observation = np.zeros(space.shape, space.dtype)
    found: list[tuple[float, float]] = []
    spaces: dict[str, Any] = {"observation_space": space, "action_space": Discrete(2)}
    with Client(address, **spaces) as tcp, Client(f"ws://{address}", **spaces) as websocket:
        for _ in range(rounds + 1):
            found.append((p50(tcp, observation, steps), p50(websocket, observation, steps)))
    del found[0]  # the warm-up round
    one, other = (statistics.median(column) for column in zip(*found, strict=True))
    return one, other, statistics.median(b / a for a, b in found)


def p50(client: Client, observation: Any, steps: int) -> float:
    client.init(observation)
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        client.send(1.0, observation)
        taken.append(time.perf_counter() - began)
    client.reset(0.0)
    return statistics.median(taken)


if __name__ == "__main__":
    raise SystemExit(main())
