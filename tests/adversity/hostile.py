#!/usr/bin/env python3
"""Train with hostile clients: `python tests/adversity/hostile.py --minutes 60 --seed 1`.

A parameter server, an RLX server and honest CartPole clients run as real processes, and hostile clients in every second
window of time. The seed determines the messages of hostile clients. A failed check ends the run with its message and
exit code 1; the folder is kept.
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
    parser = argparse.ArgumentParser(description="Train with hostile clients, and check that honest ones are served.")
    parser.add_argument("--minutes", type=float, default=3, help="duration (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the hostile messages (%(default)s)")
    parser.add_argument("--window", type=float, default=20, help="seconds of each window (%(default)s)")
    parser.add_argument("--honest", type=int, default=4, help="number of honest clients (%(default)s)")
    parser.add_argument("--rate", type=float, default=15, help="steps per second of each (%(default)s)")
    parser.add_argument("--hostile", type=int, default=3, help="number of simultaneous hostile clients (%(default)s)")
    parser.add_argument("--folder", type=Path, help="folder of all files; by default a new one in /tmp")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the result to this file, as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all samples to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a picture to this file: .png, .svg or .pdf")
    parser.add_argument("--websocket", action="store_true", help="hostile clients use WebSocket")
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

    def log(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {line}", flush=True)

    try:
        with Processes(folder) as processes:
            summary = run_hostile(processes, folder, plan, log)
    except AssertionError as failure:
        log(f"FAILED, seed {options.seed}, see {folder}\n{failure}")
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
