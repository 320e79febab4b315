#!/usr/bin/env python3
"""Send mutated frames to a real RLX server: `python tests/adversity/fuzz.py --frames 1000000 --seed 1`.

Two honest clients must be served meanwhile. A failure prints its seed and case, and the exit code is 1. To repeat a
case, use `--first CASE --frames 1`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from support.fuzz_run import fuzz
from support.fuzz_wire import Report
from support.processes import Processes

LINE_FRAMES = 50_000  # without a terminal, a line is printed after this many frames instead of a progress bar


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Send mutated frames to a real RLX server, and check that it continues to serve."
    )
    parser.add_argument("--frames", type=int, default=20_000, help="number of frames (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the cases (%(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="CASE", help="number of the first case (%(default)s)")
    parser.add_argument("--threads", type=int, default=8, help="connections at a time (%(default)s)")
    parser.add_argument("--websocket", action="store_true", help="send frames as WebSocket messages")
    options = parser.parse_args()
    console = Console()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[read]:,} read"))
    with (
        tempfile.TemporaryDirectory() as folder,
        Processes(Path(folder)) as processes,
        Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar,
    ):
        task = bar.add_task("frames", total=options.frames, read=0)

        lines = 0

        def show(report: Report) -> None:
            nonlocal lines
            bar.update(task, completed=min(report.frames, options.frames), read=report.read)
            if not console.is_terminal and report.frames >= (lines + 1) * LINE_FRAMES:
                lines = report.frames // LINE_FRAMES
                console.print(f"{report.frames:,} frames on {report.connections:,} connections", highlight=False)

        try:
            _, table = fuzz(processes, Path(folder), **vars(options), progress=show)
        except AssertionError as failure:
            console.print(f"seed {options.seed}: {failure}", markup=False, highlight=False, soft_wrap=True)
            return 1
    console.print(table, markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
