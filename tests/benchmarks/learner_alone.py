#!/usr/bin/env python3
"""A comparison of a learner's updates per second during training with those of its gradient alone.

Each round has three windows:
1. `relaax run` of an Atari configuration with one learner. The learner's status port is read.
2. The gradient alone (gradient_alone.py), on batches of the same shape, on an idle machine.
3. The gradient alone on a busy machine. For each other process of the run, a process uses the same processor time.

The ratio of 1 to 2 includes the cost of the actors and servers on the same machine. The ratio of 1 to 3 shows the cost
of the learner's sampling, priorities, pushes and pulls. A third ratio compares the processor time per update, of all
threads of the process; it does not depend on other processes. Writes learner-alone.csv and a table of replay.md. A
round that is in the CSV is not measured again. The machine should be otherwise idle.

    python tests/benchmarks/learner_alone.py [--rounds 5] [--seconds 30]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rows import Rows, study_page, write_tables
from speed import number

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from relaax.checkpoint import CheckpointManager, LocalStore
from support.scrape import scraped

ROOT = Path(__file__).resolve().parents[2]
NAME = "learner-alone"
LEARNER = "relaax.server.learner.main"
WARM_UP_UPDATES = 50
WARM_UP_SECONDS = 5.0
START_SECONDS = 600.0
END_SECONDS = 120.0
PERIOD = 0.02
Figures = dict[str, float]


@dataclass(frozen=True)
class Learned:
    """A window of a run. `others`: cores in use by each process other than the learner."""

    updates: float
    waiting: float
    processor: float
    steps: float
    others: tuple[float, ...]


@dataclass(frozen=True)
class Moment:
    """A reading of a run. `learner`: its status. `own`: its processor seconds. `others`: by process id."""

    at: float
    learner: dict[str, float]
    own: float
    others: dict[int, float]


def moment(url: str, run: psutil.Process) -> Moment:
    """Read the learner's status port and the processor times of a run's processes."""
    own, others = 0.0, {}
    for process in run.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            if LEARNER in process.cmdline():
                own += times.user + times.system
            else:
                others[process.pid] = times.user + times.system
    return Moment(time.monotonic(), scraped(url), own, others)


def learned(config: str, keys: Sequence[str], seconds: float, folder: Path, warm_up: int = WARM_UP_UPDATES) -> Learned:
    """Measure a window of `relaax run` with the run directory `folder`/run, after `warm_up` updates.

    Raises RuntimeError.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = ["relaax-learner.learners=1", f"relaax-learner.status_bind={address}", *keys]
    command = [sys.executable, "-m", "relaax.cli.main", "run", config, "--no-progress", "--run-dir", f"{folder}/run"]
    command += [part for key in settings for part in ("--set", key)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log) as run:
        try:
            await_updates(f"http://{address}", run, warm_up)
            time.sleep(min(WARM_UP_SECONDS, seconds))
            first = moment(f"http://{address}", psutil.Process(run.pid))
            time.sleep(seconds)
            last = moment(f"http://{address}", psutil.Process(run.pid))
        except BaseException:
            print((folder / "log").read_text("utf-8"), file=sys.stderr)
            raise
        finally:
            run.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(END_SECONDS)
            run.kill()
    passed = last.at - first.at
    updates, waiting, steps = (
        last.learner[f"relaax_learner_{name}"] - first.learner[f"relaax_learner_{name}"]
        for name in ("updates_total", "wait_seconds_total", "global_step")
    )
    shares = ((last.others[pid] - busy) / passed for pid, busy in first.others.items() if pid in last.others)
    own = (last.own - first.own) / max(updates, 1.0)
    return Learned(updates / passed, waiting / passed, own, steps / passed, tuple(shares))


def await_updates(url: str, run: subprocess.Popen[bytes], count: int) -> None:
    """Wait until the learner has made `count` updates. Raises RuntimeError."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and run.poll() is None:
        with contextlib.suppress(OSError):
            if scraped(url)["relaax_learner_updates_total"] >= count:
                return
        time.sleep(0.1)
    raise RuntimeError("the learner made too few updates before the timeout")


def fingerprint_of(run: Path) -> str:
    """Return the fingerprint in a run's last checkpoint."""
    manager = CheckpointManager(LocalStore(run / "checkpoints"))
    return json.dumps(manager.manifest(manager.published()[0])["fingerprint"])


def alone(folder: Path, seconds: float) -> Figures:
    """Measure the gradient alone, with the configuration of the run in `folder`. Raises CalledProcessError."""
    script = Path(__file__).with_name("gradient_alone.py")
    command = [
        sys.executable,
        str(script),
        str(folder / "run" / "configuration.yaml"),
        str(folder / "fingerprint.json"),
    ]
    done = subprocess.run([*command, f"{seconds:g}"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def spin(share: float) -> None:
    """Use a share of one core, until the process is killed."""
    while True:
        begun = time.monotonic()
        while time.monotonic() < begun + share * PERIOD:
            pass
        time.sleep(max(0.0, (1 - share) * PERIOD))


@contextlib.contextmanager
def busy(shares: Sequence[float]) -> Iterator[None]:
    """Run a process for each share, which uses that share of a core."""
    context = multiprocessing.get_context("spawn")
    spinning = [context.Process(target=spin, args=(min(share, 1.0),), daemon=True) for share in shares if share > 0]
    try:
        for process in spinning:
            process.start()
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def measured(options: argparse.Namespace) -> Figures:
    """Measure a round and return its figures."""
    with tempfile.TemporaryDirectory(prefix="relaax-study-") as name:
        folder = Path(name)
        keys = [f"algorithm.learning_starts={options.learning_starts}", *options.keys]
        run = learned(options.config, keys, options.seconds, folder)
        (folder / "fingerprint.json").write_text(fingerprint_of(folder / "run"), encoding="utf-8")
        gradient = alone(folder, options.seconds)
        with busy(run.others):
            beside = alone(folder, options.seconds)
    return {
        "learner_updates_per_second": run.updates,
        "learner_waiting": run.waiting,
        "learner_processor_ms": 1e3 * run.processor,
        "steps_per_second": run.steps,
        "cores_of_others": sum(run.others),
        "alone_updates_per_second": gradient["updates_per_second"],
        "alone_processor_ms": 1e3 * gradient["processor_seconds"],
        "busy_updates_per_second": beside["updates_per_second"],
    }


def table(rows: Rows) -> str:
    """Return the table of ratios within a round: median, minimum and maximum."""
    rounds = rows.rounds(NAME)
    lines = ["| figure | median | least to most |", "|---|---:|---|"]
    ratios = {
        "learner over the gradient alone": ("learner_updates_per_second", "alone_updates_per_second"),
        "the same on a machine as busy": ("learner_updates_per_second", "busy_updates_per_second"),
        "by the processor's time for an update": ("alone_processor_ms", "learner_processor_ms"),
    }
    for what, (of, to) in ratios.items():
        values = [one[of] / one[to] for one in rounds]
        lines.append(f"| {what} | {statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="apex_ale", help="name of a configuration (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a window (%(default)s)")
    parser.add_argument("--learning-starts", type=int, default=2000, help="transitions before learning (%(default)s)")
    parser.add_argument(
        "--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="a setting; repeatable"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: end the child processes
    rows, begun = Rows(options.output / f"{NAME}.csv"), time.monotonic()
    for round_ in range(1, options.rounds + 1):
        if not rows.has(NAME, 0, round_):
            found = measured(options)
            rows.add(NAME, 0, round_, found)
            shown = ", ".join(f"{key} {number(value)}" for key, value in found.items())
            print(f"{time.monotonic() - begun:6.0f} s  round {round_}: {shown}", file=sys.stderr, flush=True)
    text = table(rows)
    write_tables(study_page(options.output, "replay"), NAME, text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
