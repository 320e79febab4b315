#!/usr/bin/env python3
"""Train among hostile clients: `python tests/adversity/hostile.py --minutes 60 --seed 1`.

A parameter server, an RLX server and honest CartPole clients, all real processes, and in every other window clients
that say anything. The same seed gives the same conversations. What the servers did not bear ends it with what shows it,
and exit code 1; the folder stays.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.hostile_picture import draw, table, write_csv
from support.hostile_run import Plan, run_hostile
from support.processes import Processes


def main() -> int:
    parser = argparse.ArgumentParser(description="Train among hostile clients, and look whether the servers bear them.")
    parser.add_argument("--minutes", type=float, default=3, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another one gives others (%(default)s)")
    parser.add_argument(
        "--window", type=float, default=20, help="seconds with hostile clients, and without (%(default)s)"
    )
    parser.add_argument("--honest", type=int, default=4, help="honest clients (%(default)s)")
    parser.add_argument("--rate", type=float, default=15, help="steps a second of each (%(default)s)")
    parser.add_argument("--hostile", type=int, default=3, help="hostile clients at a time (%(default)s)")
    parser.add_argument("--folder", type=Path, help="where everything is kept; by default a new one in /tmp")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the result there, as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every second there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it there: .png, .svg or .pdf")
    parser.add_argument("--websocket", action="store_true", help="hostile clients come over WebSocket")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hostile-"))
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        seconds=60 * options.minutes,
        seed=options.seed,
        window=options.window,
        honest=options.honest,
        rate=options.rate,
        hostile=options.hostile,
        websocket=options.websocket,
    )
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {line}", flush=True)

    try:
        with Processes(folder) as processes:
            summary = run_hostile(processes, folder, plan, say)
    except AssertionError as failure:
        say(f"FAILED, seed {options.seed}, see {folder}\n{failure}")
        return 1
    if options.summary:
        options.summary.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    if options.csv:
        write_csv(summary, options.csv)
    if options.picture:
        draw(summary, options.picture)
    print(table(summary))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
