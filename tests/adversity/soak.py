#!/usr/bin/env python3
"""Train under random faults over real processes: `python tests/adversity/soak.py --faults 200 --seed 1 --bridge grpc`.

Shards, an RLX server, CartPole clients, wires between them, a small disk and then S3. The same seed gives the same
faults in the same order. Whatever goes wrong ends the soak with what shows it, and exit code 1; the folder stays. So
does a promise that nothing has tested, where every kind of fault came at least once that can.
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
    parser.add_argument("--faults", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="another one gives others (%(default)s)")
    parser.add_argument(
        "--bridge",
        choices=("grpc", "auto"),
        default="auto",
        help="how workers push: wires see nothing of what goes through memory (%(default)s)",
    )
    parser.add_argument("--shards", type=int, default=2, help="of the parameter server (%(default)s)")
    parser.add_argument("--clients", type=int, default=3, help="each with 4 environments (%(default)s)")
    parser.add_argument("--target", type=float, default=150, help="mean return to be reached (%(default)s)")
    parser.add_argument("--stop-seconds", type=float, default=17, help="how long SIGSTOP holds at most (%(default)s)")
    parser.add_argument("--storm", type=int, default=16, help="how many faults come together at most (%(default)s)")
    parser.add_argument("--short", action="store_true", help="other faults are short as well")
    parser.add_argument("--bound", type=float, default=180, help="seconds to be well again (%(default)s)")
    parser.add_argument("--local", action="store_true", help="no second leg in S3")
    parser.add_argument("--only", default="", metavar="TEXT", help="only faults with this in their names, as in stop")
    parser.add_argument("--folder", type=Path, help="where everything is kept; by default a new one in /tmp")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="write the result there, as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every fault there")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw it there: .png, .svg or .pdf")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print these summaries side by side")
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # every process that was started is ended
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:7.1f} s  {line}", flush=True)

    try:
        summary = run_soak(plan, folder, say)
    except SoakFailure as failure:
        say(f"FAILED after {failure.faults} faults, seed {options.seed}, see {folder}\n{failure}")
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
