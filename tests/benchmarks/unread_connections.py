#!/usr/bin/env python3
"""The cost of 300 connections that never read, for 8 clients that train CartPole and for new clients.

Each of the 300 connections sends a hello, and reconnects at once when it is closed. Windows without and with them
alternate. Prints the steps per second of both, the time to a new client's first action, and the processes and memory of
the RLX server before and after. The exit code is 1 if a bar is missed.

    python tests/benchmarks/unread_connections.py             without a token
    python tests/benchmarks/unread_connections.py --token     the server requires a token, and the connections send it
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import gymnasium
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from hostile_connections import window

from relaax.client import Client
from support.connection_floods import NonReadingClients
from support.processes import Processes, Running, wait_until
from support.service import PARAMETER_SERVER, RLX_SERVER, status_of

ROOT = Path(__file__).resolve().parents[2]
STEPS_BAR, NEWCOMER_BAR = 0.85, 2.0
TOKEN = "a-token-for-a-benchmark"
PATIENCE = 30.0  # seconds until a new client's timeout


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of connections that never read, for clients that train.")
    parser.add_argument("--crowd", type=int, default=300, help="connections that never read (%(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="processes that train (%(default)s)")
    parser.add_argument("--windows", type=int, default=3, help="windows of each kind (%(default)s)")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a window (%(default)s)")
    parser.add_argument(
        "--newcomers", type=int, default=5, help="new clients in each window with the crowd (%(default)s)"
    )
    parser.add_argument("--token", action="store_true", help="the server requires a token, and the crowd sends it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        return measure(processes, Path(folder), options)


def measure(processes: Processes, folder: Path, options: argparse.Namespace) -> int:
    token = TOKEN if options.token else ""
    if token:
        os.environ["RELAAX_TOKEN"] = token  # for the server and the clients that train
    common = ("--config", ROOT / "config" / "da3c_gym_cartpole.yaml", "--bind", "127.0.0.1:0")
    endless = ("--set", "algorithm.max_global_step=1000000000")
    _, parameter_server = processes.start_server(
        *PARAMETER_SERVER,
        *common,
        *endless,
        *("--set", f"relaax-parameter-server.checkpoint-dir={folder / 'checkpoints'}"),
        *("--set", f"relaax-parameter-server.metrics-dir={folder / 'metrics'}"),
    )
    server, address = processes.start_server(*RLX_SERVER, *common, *endless, "--parameter-server", parameter_server)
    for _ in range(options.clients):
        processes.start(sys.executable, ROOT / "environments" / "OpenAI_Gym" / "main", address, "CartPole-v1", "4")
    wait_until(lambda: status_of(parameter_server).workers == options.clients, "all clients are training", 300)
    wait_until(lambda: status_of(parameter_server).global_step > 10_000, "training has made 10,000 steps", 300)
    alone, beside, waits = [], [], []
    held, most = workers_and_memory(server), 0
    for number in range(options.windows):
        alone.append(window(parameter_server, options.seconds))
        with NonReadingClients(address, options.crowd, token) as crowd:
            beside.append(window(parameter_server, options.seconds))
            most = max(most, len(server.children()))
            new = [first_action(address, token) for _ in range(options.newcomers)]
            waits += new
        wait_until(lambda: len(server.children()) <= options.clients, "the crowd's processes have ended", 120)
        print(
            f"window {number + 1}: {alone[-1]:,.0f} steps/s alone, {beside[-1]:,.0f} with the crowd, which reconnected"
            f" {crowd.reconnects} times; new clients waited {', '.join(f'{wait:.2f}' for wait in new)} s",
            flush=True,
        )
    after = workers_and_memory(server)
    share, wait = statistics.median(beside) / statistics.median(alone), statistics.median(waits)
    print(f"\ntraining speed, with over without the crowd  {share:.2f}   the bar is {STEPS_BAR}")
    print(f"seconds to a client's first action, median   {wait:.2f}   the bar is {NEWCOMER_BAR:g}")
    print(f"  most                                       {max(waits):.2f}   {PATIENCE:g}: timeout")
    print(f"processes: before, most, after               {held[0]}, {most}, {after[0]}")
    print(f"MB of the server and its workers             {held[1]:.0f} before, {after[1]:.0f} after")
    return int(share < STEPS_BAR or wait > NEWCOMER_BAR or after[0] > held[0])


def workers_and_memory(server: Running) -> tuple[int, float]:
    """Return the number of workers, and the megabytes private to the server and its workers."""
    workers = server.children()
    processes = [psutil.Process(server.pid), *workers]
    return len(workers), sum(process.memory_full_info().uss for process in processes) / 2**20


def first_action(address: str, token: str) -> float:
    """Return the seconds from a new client's connect to its first action; PATIENCE if it fails."""
    env = gymnasium.make("CartPole-v1")
    state, _ = env.reset()
    began = time.monotonic()
    try:
        with Client(
            address,
            observation_space=env.observation_space,
            action_space=env.action_space,
            token=token or None,
            retry_seconds=PATIENCE,
            response_timeout=PATIENCE,
        ) as client:
            client.init(state)
            return time.monotonic() - began
    except Exception as error:
        print(f"a new client failed: {type(error).__name__}: {error}")
        return PATIENCE


if __name__ == "__main__":
    raise SystemExit(main())
