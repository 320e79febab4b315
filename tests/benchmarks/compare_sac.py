#!/usr/bin/env python3
"""A comparison of the updates/s of RELAAX's sac with those of Stable-Baselines3's SAC.

Both have the same networks, batches, optimizer and environment (one Pendulum), and one update for each step.
Stable-Baselines3 is one process with one or two threads of torch; a trial selects the faster number. RELAAX has one or
two learners, a worker, a client, a replay server and a parameter server, each with one thread of computation. Both are
measured in each round, and a ratio is taken within a round. Writes sac-beside.csv and its table. A round that is in the
CSV is not measured again. The machine should be otherwise idle.

    python tests/benchmarks/compare_sac.py [--rounds 5] [--seconds 30]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import sys
import time
from pathlib import Path

from peer_runs import Peer
from peers.venvs import DEFAULT
from relaax_runs import plan_of, training
from rows import Rows, study_page, write_tables
from speed import number
from speed_parts import Figures

ROOT = Path(__file__).resolve().parents[2]
NAME = "sac-beside"
LEARNERS = (1, 2)
THREADS = [["--threads", "1"], ["--threads", "2"]]


def table(rows: Rows) -> str:
    """Return the table of updates per second and of ratios."""
    lines = ["| updates/s | median | over Stable-Baselines3: median, least to most |", "|---|---:|---|"]
    rounds = rows.rounds(NAME)
    for learners in LEARNERS:
        values = [one[f"relaax_{learners}"] for one in rounds]
        ratios = [one[f"relaax_{learners}"] / one["sb3"] for one in rounds]
        shown = f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        lines.append(f"| sac, learners: {learners} | {number(statistics.median(values))} | {shown} |")
    lines.append(f"| Stable-Baselines3 | {number(statistics.median(one['sb3'] for one in rounds))} | |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a window (%(default)s)")
    parser.add_argument(
        "--venvs", type=Path, default=DEFAULT, help="folder of the peers' virtual environments (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: end the child processes
    rows, begun = Rows(options.output / f"{NAME}.csv"), time.monotonic()

    def report_progress(sentence: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {sentence}", file=sys.stderr, flush=True)

    peer = Peer("sb3", "sb3_sac.py", ["Pendulum-v1"], THREADS, options.venvs)
    for round_ in range(1, options.rounds + 1):
        if rows.has(NAME, 0, round_):
            continue
        found: Figures = {}
        for learners in LEARNERS:
            plan = plan_of("sac_gym_pendulum", 1, 1, [f"relaax-learner.learners={learners}"])
            window = training(plan, options.seconds)
            found[f"relaax_{learners}"] = window.pushes / window.seconds
        found["sb3"] = peer.result(options.seconds, report_progress)["updates_per_second"]
        rows.add(NAME, 0, round_, found)
        report_progress(f"round {round_}: " + ", ".join(f"{key} {number(value)}" for key, value in found.items()))
    text = table(rows)
    write_tables(study_page(options.output, "sac"), NAME, text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
