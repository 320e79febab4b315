#!/usr/bin/env python3
"""A comparison of RELAAX's deep Q-learning with Stable-Baselines3's DQN: updates/s, and seconds to CartPole's 475.

Both have the same network, batch, optimizer, loss, memory, number of environments and steps per update: one-step
returns, no double Q-learning, no dueling, no priorities. Stable-Baselines3 is one process with one or two threads of
torch; a trial selects the faster number. RELAAX is gorila with `learner: separate`: one or two learners, two workers,
two clients, a replay server and a parameter server, each with one thread of computation. Both are measured in each
round, and a ratio is taken within a round.

Time to 475: a greedy evaluation of ten episodes every `--evaluate-every` steps. RELAAX runs with the settings of
Stable-Baselines3's zoo and with its bundled configuration. Writes dqn-beside.csv and the tables of replay.md. A round
that is in the CSV is not measured again. The machine should be otherwise idle.

    python tests/benchmarks/compare_dqn.py [--rounds 5] [--seconds 30]
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer_runs import Peer, run
from peers.venvs import DEFAULT
from relaax_runs import evaluated, plan_of, training
from rows import Rows, study_page, write_tables
from speed import number
from speed_parts import Figures

ROOT = Path(__file__).resolve().parents[2]
NAME = "dqn-beside"
CLIENTS, ENVIRONMENTS = 2, 4
TOGETHER = CLIENTS * ENVIRONMENTS
TARGET, EPISODES, MAX_STEPS = 475.0, 10, 150_000
FIRST_SEED = 1
LEARNERS = (1, 2)
THREADS = [["--threads", "1"], ["--threads", "2"]]
PLAIN = (
    "algorithm.learner=separate",
    "algorithm.n_step=1",
    "algorithm.double=false",
    "algorithm.dueling=false",
    "algorithm.prioritized=false",
    "algorithm.max_staleness=null",
    "algorithm.loss_outlier_deviations=null",
    "algorithm.optimizer=adam",
    "algorithm.Adam.gradient_norm_clipping=10",
    "algorithm.initial_epsilon=1",
)
NATURE = (
    "algorithm.network.convolutions=[{filters: 32, kernel: 8, stride: 4}, {filters: 64, kernel: 4, stride: 2}, "
    "{filters: 64, kernel: 3, stride: 1}]",
    "algorithm.network.dense=[512]",
)


@dataclass(frozen=True)
class Work:
    """The work of both sides: after `steps` of all environments, `updates` follow. `memory`: transitions."""

    config: str
    name: str
    batch: int
    steps: int
    updates: int
    memory: int
    learning_rate: float
    network: tuple[str, ...]
    begins: int = 1000

    def relaax_keys(self, learners: int) -> list[str]:
        """Return the configuration keys of RELAAX."""
        return [
            *PLAIN,
            *self.network,
            f"relaax-learner.learners={learners}",
            f"algorithm.batch_size={self.batch}",
            f"algorithm.samples_per_insert={self.batch * self.updates / self.steps:g}",
            f"algorithm.replay_capacity={self.memory}",
            f"algorithm.learning_starts={self.begins}",
            f"algorithm.initial_learning_rate={self.learning_rate:g}",
        ]

    def peer_arguments(self) -> list[str]:
        """Return the arguments of sb3_dqn.py."""
        numbers = {
            "environments": TOGETHER,
            "batch": self.batch,
            "train-freq": self.steps // TOGETHER,
            "gradient-steps": self.updates,
            "buffer": self.memory,
            "learning-starts": self.begins,
            "learning-rate": f"{self.learning_rate:g}",
        }
        return [self.name, *(part for key, value in numbers.items() for part in (f"--{key}", str(value)))]


CARTPOLE = Work(
    "gorila_gym_cartpole", "CartPole-v1", 64, 256, 128, 100_000, 2.3e-3, ("algorithm.network.dense=[256, 256]",)
)
"""The zoo's settings: 128 updates after 256 steps."""
PONG = Work("gorila_ale_pong", "pong", 32, 8, 2, 20_000, 1e-4, NATURE)
"""An update every 4 steps, as in Mnih et al. 2015."""
ZOO = (
    "algorithm.target_interval=128",  # the zoo's 10 steps take effect only between two rounds of 128 updates
    "algorithm.exploration_frames=8000",  # 0.16 of 50,000
    "algorithm.final_epsilon=0.04",
    "algorithm.rewards_gamma=0.99",
)


@dataclass
class DqnStudy:
    """The settings of all parts. `seconds`: length of a window; `keys`: further settings of RELAAX."""

    seconds: float
    evaluate_every: int
    venvs: Path
    keys: Sequence[str]
    report_progress: Callable[[str], None]
    _peers: dict[str, Peer] = field(default_factory=dict)

    def speed(self, work: Work) -> Figures:
        """Return the updates per second of RELAAX, by number of learners, and of Stable-Baselines3."""
        found: Figures = {}
        for learners in LEARNERS:
            plan = plan_of(work.config, CLIENTS, ENVIRONMENTS, [*work.relaax_keys(learners), *self.keys])
            window = training(plan, self.seconds)
            found[f"relaax_{learners}"] = window.pushes / window.seconds
            found[f"relaax_{learners}_steps"] = window.steps_per_second
        peer = self._peers.setdefault(work.name, Peer("sb3", "sb3_dqn.py", work.peer_arguments(), THREADS, self.venvs))
        result = peer.result(self.seconds, self.report_progress)
        return found | {"sb3": result["updates_per_second"], "sb3_steps": result["steps_per_second"]}

    def learned(self, round_: int) -> Figures:
        """Return the seconds until a greedy evaluation reaches 475, for the seed of the round."""
        seed, found = FIRST_SEED + round_ - 1, Figures()
        watched = [f"run.eval_every={self.evaluate_every}", f"run.eval_episodes={EPISODES}", *self.keys]
        numbers = [f"run.clients={CLIENTS}", f"run.envs_per_client={ENVIRONMENTS}", f"run.max_steps={MAX_STEPS}"]
        zoo = [*CARTPOLE.relaax_keys(1), *ZOO, *numbers]
        for name, keys in {"zoo": zoo, "bundled": [f"run.max_steps={MAX_STEPS}"]}.items():
            summary = evaluated(CARTPOLE.config, seed, TARGET, [*keys, *watched])
            found[f"{name}_s"] = summary["seconds"]
            found[f"{name}_steps"] = summary["env_steps"]
            found[f"{name}_reached"] = summary["status"] == "target_reached"
        arguments = [
            *CARTPOLE.peer_arguments(),
            "--seed",
            str(seed),
            "--target",
            f"{TARGET:g}",
            "--episodes",
            str(EPISODES),
        ]
        arguments += ["--target-interval", "10", "--exploration-steps", "8000", "--final-epsilon", "0.04"]
        arguments += ["--evaluate-every", str(self.evaluate_every), "--max-steps", str(MAX_STEPS)]
        peer = run("sb3", "sb3_dqn.py", arguments, self.venvs)
        return found | {
            "sb3_s": peer["seconds"],
            "sb3_without_evaluations_s": peer["seconds_without_evaluations"],
            "sb3_steps": peer["steps"],
            "sb3_reached": peer["reached"],
        }


PARTS: dict[str, Callable[[DqnStudy, int], Figures]] = {
    "cartpole": lambda study, round_: study.speed(CARTPOLE),
    "pong": lambda study, round_: study.speed(PONG),
    "cartpole-475": lambda study, round_: study.learned(round_),
}
"""Functions by the part's name. Each takes the study and the number of the round."""


def tables(rows: Rows) -> str:
    """Return the tables: updates per second and ratios, then the seconds to 475 of each seed."""
    lines = ["| updates/s | RELAAX, 1 learner | 2 learners | Stable-Baselines3 | ratio, 1 | ratio, 2 | least to most |"]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for part in ("cartpole", "pong"):
        if rounds := rows.rounds(part):
            medians = [statistics.median(one[key] for one in rounds) for key in ("relaax_1", "relaax_2", "sb3")]
            ratios = [[one[key] / one["sb3"] for one in rounds] for key in ("relaax_1", "relaax_2")]
            cells = [number(value) for value in medians] + [f"{statistics.median(found):.2f}" for found in ratios]
            every = [value for found in ratios for value in found]
            lines.append(f"| {part} | {' | '.join(cells)} | {min(every):.2f} to {max(every):.2f} |")
    if rounds := rows.rounds("cartpole-475"):
        lines += ["", "| CartPole to 475, by seed | seconds | steps | reached |", "|---|---|---|---|"]
        named = {"zoo": "RELAAX, the zoo's settings", "bundled": "RELAAX, bundled", "sb3": "Stable-Baselines3"}
        for key, name in named.items():
            seconds = ", ".join(f"{one[f'{key}_s']:.1f}" for one in rounds)
            steps = ", ".join(f"{one[f'{key}_steps']:,.0f}" for one in rounds)
            reached = sum(bool(one[f"{key}_reached"]) for one in rounds)
            lines.append(f"| {name} | {seconds} | {steps} | {reached} of {len(rounds)} |")
        without = [one["sb3_without_evaluations_s"] for one in rounds]
        lines.append(f"\nStable-Baselines3 without its evaluations: {', '.join(f'{one:.1f}' for one in without)} s.")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(PARTS), metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the speeds (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of cartpole-475 (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a window (%(default)s)")
    parser.add_argument("--evaluate-every", type=int, default=5000, help="steps between evaluations (%(default)s)")
    parser.add_argument(
        "--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="a setting of RELAAX; repeatable"
    )
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

    study = DqnStudy(options.seconds, options.evaluate_every, options.venvs, options.keys, report_progress)
    for round_ in range(1, max(options.rounds, options.seeds) + 1):
        for part in options.only or PARTS:
            last = options.seeds if part == "cartpole-475" else options.rounds
            if round_ <= last and not rows.has(part, 0, round_):
                found = PARTS[part](study, round_)
                rows.add(part, 0, round_, found)
                report_progress(
                    f"round {round_}, {part}: " + ", ".join(f"{key} {number(value)}" for key, value in found.items())
                )
    text = tables(rows)
    write_tables(study_page(options.output, "replay"), NAME, text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
