#!/usr/bin/env python3
"""Train under random faults over real processes: `python tests/adversity/soak.py --faults 200 --seed 1 --bridge grpc`.

The processes are shards, an RLX server and CartPole clients, with proxies between them. Checkpoints go to a small disk,
and then to S3. The seed determines the faults and their order. A failed check ends the soak with its message and exit
code 1; the folder is kept. If every possible kind of fault occurred, an untested promise is a failure too.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.soak_picture import draw, write_csv
from support.soak_run import SoakFailure, run_soak
from support.soak_summary import Plan, table


def main() -> int:
    parser = argparse.ArgumentParser(description="Train under random faults, and keep account of every update.")
    parser.add_argument("--faults", type=int, default=200, help="number of faults (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults (%(default)s)")
    parser.add_argument(
        "--bridge",
        choices=("grpc", "auto"),
        default="auto",
        help="transport of pushes; proxies cannot affect shared memory (%(default)s)",
    )
    parser.add_argument("--shards", type=int, default=2, help="shards of the parameter server (%(default)s)")
    parser.add_argument("--clients", type=int, default=3, help="clients with 4 environments each (%(default)s)")
    parser.add_argument("--target", type=float, default=150, help="mean return to reach (%(default)s)")
    parser.add_argument("--stop-seconds", type=float, default=17, help="maximum duration of SIGSTOP (%(default)s)")
    parser.add_argument("--storm", type=int, default=16, help="maximum number of simultaneous faults (%(default)s)")
    parser.add_argument("--short", action="store_true", help="shorten the other faults too")
    parser.add_argument("--bound", type=float, default=180, help="maximum seconds to recover (%(default)s)")
    parser.add_argument("--local", action="store_true", help="skip the second part, which uses S3")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults whose names contain TEXT, such as stop")
    parser.add_argument("--folder", type=Path, help="folder of all files; by default a new one in /tmp")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the result to this file, as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write all faults to this file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw a picture to this file: .png, .svg or .pdf")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print a table of these summaries")
    options = parser.parse_args()
    if options.table:
        print(table(*(json.loads(file.read_text(encoding="utf-8")) for file in options.table)))
        return 0
    folder = options.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        faults=options.faults,
        seed=options.seed,
        shards=options.shards,
        clients=options.clients,
        target=options.target,
        storm=options.storm,
        stop_seconds=options.stop_seconds,
        bound=options.bound,
        short=options.short,
        s3=not options.local,
        bridge=options.bridge,
        only=options.only,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends all started processes
    begun = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {line}", flush=True)

    try:
        summary = run_soak(plan, folder, log)
    except SoakFailure as failure:
        log(f"FAILED after {failure.faults} faults, seed {options.seed}, see {folder}\n{failure}")
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
