#!/usr/bin/env python3
"""The time from the command `relaax run` to each of its first lines.

Starts of one or more checkouts alternate, so that other load on the machine affects all. The first start of each does
not count, because it compiles kernels and fills the file system's cache. Prints a table of medians. The exit code is 1
if the first progress line of this checkout comes later than the bar.

    python tests/benchmarks/start.py --other /path/to/an/older/checkout
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BAR = 3.0
COMMAND = (
    sys.executable,
    "-m",
    "relaax.cli.main",
    "run",
    "da3c_gym_cartpole",
    "--clients",
    "4",
    "--max-steps",
    "20000",
)
MOMENTS = {
    "first line": "",
    "run directory": "run directory ",
    "servers": "environments connect to ",
    "progress": " steps/s  ",
}
"""Names of the timed lines, and a text that each contains."""


def main() -> int:
    parser = argparse.ArgumentParser(description="The time from `relaax run` to its first lines.")
    parser.add_argument("--starts", type=int, default=7, help="starts of each checkout (%(default)s)")
    parser.add_argument(
        "--other", type=Path, action="append", default=[], help="a checkout to compare with; repeatable"
    )
    options = parser.parse_args()
    found: dict[Path, list[dict[str, float]]] = {root: [] for root in (ROOT, *options.other)}
    for turn in range(options.starts + 1):
        for root, starts in found.items():
            moments = timed(root)
            if turn:
                starts.append(moments)
    print(f"seconds from the command; medians of {options.starts} starts")
    print(f"{'':<40}" + "".join(f"{name:>15}" for name in (*MOMENTS, "processor")))
    for root, starts in found.items():
        columns = (statistics.median(start[name] for start in starts) for name in (*MOMENTS, "processor"))
        print(f"{root!s:<40}" + "".join(f"{value:>15.2f}" for value in columns))
    print(f"the bar is {BAR:g}")
    return int(statistics.median(start["progress"] for start in found[ROOT]) > BAR)


def timed(root: Path) -> dict[str, float]:
    """Return the seconds to each of MOMENTS; `processor`: processor seconds of the whole run."""
    moments: dict[str, float] = {}
    before = os.times()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with subprocess.Popen(
            (*COMMAND, "--run-dir", f"{folder}/run"),
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"},
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                for name, text in MOMENTS.items():
                    if re.search(text, line):
                        moments.setdefault(name, time.monotonic() - began)
    after = os.times()
    moments["processor"] = after.children_user + after.children_system - before.children_user - before.children_system
    return moments


if __name__ == "__main__":
    sys.exit(main())
