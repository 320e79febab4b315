#!/usr/bin/env python3
"""The cost of 500 connections that send nothing, or one byte per second, for 8 clients that train CartPole.

Measures the steps per second of a real service. Windows without and with the hostile connections alternate, so that
other load on the machine affects both. Prints a table. The exit code is 1 if training loses more than the bar.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.connection_floods import SlowHandshakes
from support.processes import Processes, wait_until
from support.service import PARAMETER_SERVER, RLX_SERVER, status_of

ROOT = Path(__file__).resolve().parents[2]
BAR = 0.20
SETTLE_SECONDS = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of hostile connections for clients that train.")
    parser.add_argument("--hostile", type=int, default=500, help="hostile connections (%(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="processes that train (%(default)s)")
    parser.add_argument("--windows", type=int, default=6, help="windows of each kind (%(default)s)")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of a window (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Processes(Path(folder)) as processes:
        without, with_them = measured(processes, Path(folder), options)
    calm, hostile = statistics.median(without), statistics.median(with_them)
    loss = 1 - hostile / calm
    print(f"\n{'steps/s of ' + str(options.clients) + ' clients':<40} median   windows")
    for name, windows, median in (("alone", without, calm), (f"with {options.hostile} others", with_them, hostile)):
        print(f"{name:<40} {median:>6,.0f}   {', '.join(f'{window:,.0f}' for window in windows)}")
    print(f"{'loss':<40} {loss:>6.1%}   the bar is {BAR:.0%}")
    return int(loss > BAR)


def measured(processes: Processes, folder: Path, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the steps per second of each window, without and with the hostile connections."""
    common = ("--config", ROOT / "config" / "da3c_gym_cartpole.yaml", "--bind", "127.0.0.1:0")
    _, parameter_server = processes.start_server(
        *PARAMETER_SERVER,
        *common,
        *("--set", "algorithm.max_global_step=1000000000"),
        *("--set", f"relaax-parameter-server.checkpoint-dir={folder / 'checkpoints'}"),
        *("--set", f"relaax-parameter-server.metrics-dir={folder / 'metrics'}"),
    )
    server, address = processes.start_server(
        *RLX_SERVER,
        *common,
        *("--set", "algorithm.max_global_step=1000000000", "--parameter-server", parameter_server),
    )
    for _ in range(options.clients):
        processes.start(sys.executable, ROOT / "environments" / "OpenAI_Gym" / "main", address, "CartPole-v1", "4")
    wait_until(lambda: status_of(parameter_server).workers == options.clients, "all clients are training", 300)
    wait_until(lambda: status_of(parameter_server).global_step > 10_000, "training has made 10,000 steps", 300)
    windows: tuple[list[float], list[float]] = ([], [])
    for number in range(options.windows):
        windows[0].append(window(parameter_server, options.seconds))
        with SlowHandshakes(address, options.hostile) as hostile:
            windows[1].append(window(parameter_server, options.seconds))
            workers = len(server.children())
        print(
            f"window {number + 1}: {windows[0][-1]:,.0f} steps/s alone, {windows[1][-1]:,.0f} with {options.hostile}"
            f" others, which reconnected {hostile.reconnects} times; {workers} workers",
            flush=True,
        )
    return windows


def window(parameter_server: str, seconds: float) -> float:
    """Return the steps per second of training in one window."""
    time.sleep(SETTLE_SECONDS)
    began, before = time.monotonic(), status_of(parameter_server).global_step
    time.sleep(seconds)
    steps = status_of(parameter_server).global_step - before
    return float(steps / (time.monotonic() - began))


if __name__ == "__main__":
    raise SystemExit(main())
