#!/usr/bin/env python3
"""What 300 connections that say hello and never read cost 8 clients that train CartPole, and one that comes anew.

Whoever of the crowd is ended comes again at once. Prints steps per second in windows without and with the crowd, by
turns; how long newcomers wait for their first action beside the crowd; and the processes and the memory of the RLX
server before and after it. Exit code 1 if a bar is missed.

    python tests/benchmarks/deaf_crowd.py             without a token
    python tests/benchmarks/deaf_crowd.py --token     the server asks for one, and the crowd has it
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
PATIENCE = 30.0  # seconds after which a newcomer gives up


def main() -> int:
    parser = argparse.ArgumentParser(description="What a crowd that never reads costs those that train.")
    parser.add_argument("--crowd", type=int, default=300, help="connections that never read (%(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="processes that train (%(default)s)")
    parser.add_argument("--windows", type=int, default=3, help="of each kind (%(default)s)")
    parser.add_argument("--seconds", type=float, default=12.0, help="of a window (%(default)s)")
    parser.add_argument("--newcomers", type=int, default=5, help="in each window with the crowd (%(default)s)")
    parser.add_argument("--token", action="store_true", help="the server asks for a token, and the crowd has it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        return measure(processes, Path(folder), options)


def measure(processes: Processes, folder: Path, options: argparse.Namespace) -> int:
    token = TOKEN if options.token else ""
    if token:
        os.environ["RELAAX_TOKEN"] = token  # of the server and of those who train
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
    wait_until(lambda: status_of(parameter_server).workers == options.clients, "everybody is there", 300)
    wait_until(lambda: status_of(parameter_server).global_step > 10_000, "training goes on", 300)
    alone, beside, waits = [], [], []
    held, most = holding(server), 0
    for number in range(options.windows):
        alone.append(window(parameter_server, options.seconds))
        with NonReadingClients(address, options.crowd, token) as crowd:
            beside.append(window(parameter_server, options.seconds))
            most = max(most, len(server.children()))
            new = [first_action(address, token) for _ in range(options.newcomers)]
            waits += new
        wait_until(lambda: len(server.children()) <= options.clients, "the crowd's processes have ended", 120)
        print(
            f"window {number + 1}: {alone[-1]:,.0f} steps/s alone, {beside[-1]:,.0f} beside the crowd, which came again"
            f" {crowd.reconnects} times; newcomers waited {', '.join(f'{wait:.2f}' for wait in new)} s",
            flush=True,
        )
    after = holding(server)
    share, wait = statistics.median(beside) / statistics.median(alone), statistics.median(waits)
    print(f"\nsteps/s beside the crowd, of those without   {share:.2f}   the bar is {STEPS_BAR}")
    print(f"seconds to a newcomer's first action, median {wait:.2f}   the bar is {NEWCOMER_BAR:g}")
    print(f"  most                                       {max(waits):.2f}   {PATIENCE:g}: gave up")
    print(f"processes: before, most, after               {held[0]}, {most}, {after[0]}")
    print(f"MB of the server and its workers             {held[1]:.0f}, after it {after[1]:.0f}")
    return int(share < STEPS_BAR or wait > NEWCOMER_BAR or after[0] > held[0])


def holding(server: Running) -> tuple[int, float]:
    """Workers, and the megabytes that they and the server have of their own."""
    workers = server.children()
    processes = [psutil.Process(server.pid), *workers]
    return len(workers), sum(process.memory_full_info().uss for process in processes) / 2**20


def first_action(address: str, token: str) -> float:
    """Seconds until a client that comes has its first action; PATIENCE where it gives up."""
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
        print(f"a newcomer gave up: {type(error).__name__}: {error}")
        return PATIENCE


if __name__ == "__main__":
    raise SystemExit(main())
