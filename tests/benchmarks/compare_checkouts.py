#!/usr/bin/env python3
"""Compare the training speed of this checkout with that of another checkout.

Alternates `relaax run` of the two checkouts, so that other load on the machine affects both. Prints a Markdown table:
the median of each checkout, and the median and range of the ratios of neighbouring runs. A ratio above 1 means that
this checkout is faster. The exit code is 1 if a median ratio of steps/s or updates/s is below `--bar`.

    python tests/benchmarks/compare_checkouts.py /path/to/the/other --rounds 5
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    "Boxing 2 x 8": ("da3c_ale_boxing", 2, 1, 8),
    "Boxing 8 x 1": ("da3c_ale_boxing", 8, 1, 1),
    "CartPole 2 x 8": ("da3c_gym_cartpole", 2, 1, 8),
    "CartPole 64 x 1": ("da3c_gym_cartpole", 8, 8, 1),
    "CartPole with an LSTM, 2 x 8": ("da3c_lstm_cartpole", 2, 1, 8),
    "BipedalWalker 2 x 8": ("da3cc_gym_walker", 2, 1, 8),
    "CartPole by gorila, 2 x 4": ("gorila_distributed_gym_cartpole", 2, 1, 4),
}
"""Case to configuration, client processes, connections per process, environments per connection."""
LATENCIES = {"act p50, ms": "latency/act_ms/p50", "act p99, ms": "latency/act_ms/p99"}
Figures = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the training speed of two checkouts.")
    parser.add_argument("other", type=Path, help="another checkout, with its own .venv")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each checkout and case (%(default)s)")
    parser.add_argument("--seconds", type=int, default=10, help="training time of each run (%(default)s)")
    parser.add_argument("--bar", type=float, default=0.97, help="the lowest median ratio (%(default)s)")
    parser.add_argument("--case", action="append", choices=CASES, help="measure only this case; repeatable")
    options = parser.parse_args()
    worst = float("inf")
    print("| case | figure | other | this | ratio | range |\n|---|---|---|---|---|---|")
    for case in options.case or CASES:
        rounds: list[tuple[Figures, Figures]] = []
        for turn in range(options.rounds):
            roots = (options.other, ROOT) if turn % 2 else (ROOT, options.other)
            found = {root: measured(root, case, options.seconds) for root in roots}
            rounds.append((found[options.other], found[ROOT]))
            paces = " and ".join(f"{figures['steps/s']:,.0f}" for figures in rounds[-1])
            print(f"{case}: round {turn + 1} of {options.rounds}, {paces} steps/s", file=sys.stderr)
        for figure in rounds[0][0]:
            pairs = [(other[figure], this[figure]) for other, this in rounds]
            ratios = [other / this if figure in LATENCIES else this / other for other, this in pairs]
            medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
            shown = [f"{value:,.0f}" if value > 100 else f"{value:.3g}" for value in medians]
            middle = statistics.median(ratios)
            print(
                f"| {case} | {figure} | {shown[0]} | {shown[1]} | {middle:.2f} | {min(ratios):.2f}-{max(ratios):.2f} |"
            )
            sys.stdout.flush()
            if figure not in LATENCIES:
                worst = min(worst, middle)
    return 0 if worst >= options.bar else 1


def measured(root: Path, case: str, seconds: int) -> Figures:
    """Train once with the checkout `root`. If it did not train, exit with the output of the command."""
    name, clients, connections, environments = CASES[case]
    relaax = str(root / ".venv" / "bin" / "relaax")
    with tempfile.TemporaryDirectory() as folder:
        run, table = Path(folder) / "run", Path(folder) / "curve.csv"
        numbers = ("--clients", clients, "--connections-per-client", connections, "--envs-per-client", environments)
        command = [relaax, "run", name, *map(str, numbers), "--max-time", str(seconds), "--seed", "1"]
        command += ["--set", "run.target_return=null", "--run-dir", str(run), "--no-progress"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        summary = json.loads((run / "summary.json").read_text()) if (run / "summary.json").is_file() else {}
        if not summary.get("env_steps"):
            sys.exit(f"{' '.join(command)} did not train:\n{done.stderr}")
        pace = float(summary["steps_per_second"])
        figures = {"steps/s": pace, "updates/s": pace * summary["updates"] / summary["env_steps"]}
        for figure, scalar in LATENCIES.items():
            plot = [relaax, "plot", str(run), "--scalar", scalar, "-o", f"{folder}/p.png", "--csv", str(table)]
            subprocess.run(plot, capture_output=True, check=True)
            with table.open(newline="", encoding="utf-8") as file:
                figures[figure] = statistics.median(float(row[scalar]) for row in csv.DictReader(file))
        return figures


if __name__ == "__main__":
    sys.exit(main())
