#!/usr/bin/env python3
"""The speed of RELAAX, compared with the environments alone, with its peers, and with fixed bars.

Each round measures RELAAX, the environments alone, Stable-Baselines3's A2C and PPO and RLlib's IMPALA, in turn. The
peers are installed at their first use (see peers/venvs.py). A ratio is taken within a round; the result is the median
of the rounds. Writes speed.csv, speed.json (machine, versions, command) and the tables of speed.md. A round that is in
the CSV is not measured again, so an interrupted study can be resumed. The machine should be otherwise idle. With the
defaults this takes more than two hours.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers.venvs import DEFAULT, PEERS
from rows import Rows, study_page, write_tables
from speed_parts import PARTS, UPDATES, Figures, Study

from relaax.cli.bench import results

ROOT = Path(__file__).resolve().parents[2]
NAME = "speed"


@dataclass(frozen=True)
class Bar:
    """A bar of a part. `of` computes one number from its rounds; `least`: that number must be at least `bar`."""

    part: str
    what: str
    of: Callable[[list[Figures]], float]
    bar: float
    least: bool = True
    form: str = ".2f"

    def met(self, value: float) -> bool:
        """Return whether `value` reaches the bar."""
        return value >= self.bar if self.least else value <= self.bar

    def row(self, rounds: list[Figures]) -> str:
        """Return a line of the table."""
        value = self.of(rounds)
        sign = "≥" if self.least else "≤"
        shown = f"{value:{self.form}}"
        return f"| {self.what} | {shown} | {sign} {self.bar:{self.form}} | {'yes' if self.met(value) else '**no**'} |"


def ratio(of: str, to: str) -> Callable[[list[Figures]], float]:
    """Return a function: the median of the rounds' ratios."""
    return lambda rounds: statistics.median(figures[of] / figures[to] for figures in rounds)


def median(of: str) -> Callable[[list[Figures]], float]:
    """Return a function: the median of the rounds."""
    return lambda rounds: statistics.median(figures[of] for figures in rounds)


def medians(of: str, to: str) -> Callable[[list[Figures]], float]:
    """Return a function: the ratio of two medians, for rounds whose figures are not paired (seeds)."""
    return lambda rounds: median(of)(rounds) / median(to)(rounds)


def most(of: str) -> Callable[[list[Figures]], float]:
    """Return a function: the maximum of the rounds."""
    return lambda rounds: max(figures[of] for figures in rounds)


def least(of: str) -> Callable[[list[Figures]], float]:
    """Return a function: the minimum of the rounds."""
    return lambda rounds: min(figures[of] for figures in rounds)


BARS = (
    Bar("boxing-2x8", "Boxing, 2 x 8: efficiency", ratio("training", "with_network"), 0.88),
    Bar("boxing-2x8", "training over the environments alone", ratio("training", "emulator_only"), 0.60),
    Bar("boxing-2x8", "over RLlib's IMPALA, 2 x 8", ratio("training", "impala"), 3.2),
    Bar("boxing-2x8", "over Stable-Baselines3's A2C, 16", ratio("training", "a2c"), 3.2),
    Bar("boxing-2x8", "over IMPALA with its own defaults", ratio("training", "impala_as_is"), 4.5),
    Bar("boxing-2x8", "over A2C with its own environments", ratio("training", "a2c_as_is"), 4.5),
    Bar("boxing-8x1", "Boxing, 8 x 1: efficiency", ratio("training", "with_network"), 0.75),
    Bar("boxing-8x1", "training over the environments alone", ratio("training", "emulator_only"), 0.42),
    Bar("cartpole-2x8", "CartPole, 2 x 8: training over Stable-Baselines3's A2C, 16", ratio("training", "a2c"), 3.0),
    Bar("cartpole-ppo-2x8", "CartPole, 2 x 8: ppo over Stable-Baselines3's PPO, 16", ratio("training", "ppo"), 2.0),
    Bar("cartpole-475", "CartPole to 475: seconds over A2C's, 8", medians("training_s", "a2c_s"), 1.0, least=False),
    Bar("cartpole-475", "least that reached 475 (1: all seeds)", least("training_reached"), 1, form=".0f"),
    Bar("connections-64", "CartPole, 64 x 1: steps/s together", median("training"), 4000, form=",.0f"),
    Bar("connections-64", "p99 of an action, ms", median("act_p99_ms"), 150, least=False, form=".0f"),
    Bar("connections-64", "the slowest connection over the mean", median("slowest_over_mean"), 0.5),
    Bar("connections-64", "warnings: refused, dropped, failed", most("warnings"), 0, least=False, form=".0f"),
    Bar("latency", "CartPole: p50 of an action, ms", median("cartpole_p50_ms"), 0.15, least=False),
    Bar("latency", "Atari: p50 of an action, ms", median("atari_p50_ms"), 0.30, least=False),
    Bar("worker", "CartPole: largest worker, MB", median("cartpole_mb"), 120, least=False, form=".0f"),
    Bar("worker", "CartPole: from connect to first action, s", median("cartpole_start_s"), 0.6, least=False),
    Bar("worker", "Atari: largest worker, MB", median("atari_mb"), 120, least=False, form=".0f"),
    Bar("worker", "Atari: from connect to first action, s", median("atari_start_s"), 0.6, least=False),
)


def table_of_bars(rows: Rows) -> str:
    lines = ["| what | median | bar | reached |", "|---|---|---|---|"]
    lines += [bar.row(rounds) for bar in BARS if (rounds := rows.rounds(bar.part))]
    return "\n".join(lines) + "\n"


def tables(rows: Rows) -> str:
    """Return the bars, then every figure of every part: median, minimum and maximum of its rounds."""
    lines = [table_of_bars(rows), "| part | figure | median | least to most | rounds |", "|---|---|---|---|---|"]
    for part in PARTS:
        rounds = rows.rounds(part)
        for name in rounds[0] if rounds else ():
            values = [figures[name] for figures in rounds]
            middle, spread = number(statistics.median(values)), f"{number(min(values))} to {number(max(values))}"
            lines.append(f"| {part} | {name} | {middle} | {spread} | {len(values)} |")
    return "\n".join(lines) + "\n"


def number(value: float) -> str:
    """Return a number as text: an integer from 100 on, three significant digits below."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of each part; seeds of cartpole-475 (%(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a window (%(default)s)")
    parser.add_argument("--updates", type=int, default=UPDATES, help="updates before memory is measured (%(default)s)")
    parser.add_argument(
        "--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="a setting of RELAAX; repeatable"
    )
    parser.add_argument(
        "--venvs", type=Path, default=DEFAULT, help="folder of the peers' virtual environments (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or not options.seconds > 0:
        parser.error("--rounds and --seconds must be above 0")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: end the child processes
    options.output.mkdir(parents=True, exist_ok=True)
    rows = Rows(options.output / f"{NAME}.csv")
    facts = results.describe_machine()
    for warning in results.busy_machine(facts):
        print(f"warning: {warning}", file=sys.stderr)
    command = " ".join([".venv/bin/python tests/benchmarks/speed.py", *arguments])
    about = {"date": time.strftime("%Y-%m-%d"), "command": command, "machine": facts, "peers": PEERS}
    (options.output / f"{NAME}.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    begun = time.monotonic()

    def report_progress(sentence: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {sentence}", file=sys.stderr, flush=True)

    study = Study(options.seconds, options.venvs, options.keys, options.updates, report_progress)
    # Rounds are the outer loop, so that a slow hour of the machine affects all parts.
    for round_ in range(1, options.rounds + 1):
        for part in options.only or PARTS:
            if not rows.has(part, 0, round_):
                found = PARTS[part](study, round_)
                rows.add(part, 0, round_, found)
                report_progress(
                    f"round {round_}, {part}: " + ", ".join(f"{key} {number(value)}" for key, value in found.items())
                )
    write_tables(study_page(options.output, NAME), "figures", table_of_bars(rows))
    print(tables(rows), end="")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
