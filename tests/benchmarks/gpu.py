#!/usr/bin/env python3
"""The speed of RELAAX on a GPU: replay memory, a learner, da3c, latencies, and the number of workers.

The parts, each in a process of its own with a timeout:
replay: transitions inserted and batches of 512 sampled per second at two replay servers, at the same time.
learner: updates per second with 512 Atari transitions from two replay servers, and of the gradient alone.
boxing: steps per second of da3c with one client of 8 environments per core, with the GPU and without.
acting: steps per second of apex with 8 connections, with one inference process for all workers and without.
latency: milliseconds of an action and of a gradient of da3c's network, on the GPU and on the CPU.
workers: steps per second of da3c on the CPU with 1, 2, 4, 8 and 16 workers of one environment.

All parts together take less than eight minutes: when the time is over, the rest is left out. Without a GPU, the
parts that need one are marked "no GPU", and learner and acting are measured on the CPU. Numbers of workers above the
number of cores are left out.

Writes gpu.csv (all figures), gpu.json (machine, card, and the outcome of each part), gpu.md (tables) and a log of each
part. Each figure is written when it is measured. A part that is done, and a figure that is in the CSV, are not measured
again: to resume, repeat the command. The machine should be otherwise idle.

    python tests/benchmarks/gpu.py --output gpu-results
"""

from __future__ import annotations

import os

from relaax.libraries import missing_from

os.environ.update(missing_from(os.environ))  # as in a worker

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpu_parts import ACTORS, BATCH, CAPACITY, INFERENCE, WORKERS, Study, run_part
from rows import Rows

from relaax.cli.bench.results import describe_machine
from support.processes import Running

TOTAL_SECONDS = 465.0
"""Maximum seconds of one run."""
END_SECONDS = 10.0
CARD_SECONDS = 180.0
NO_GPU = "no GPU"
DONE, FAILED, TIMEOUT, OUT_OF_TIME = "done", "failed", "timeout", "out of time"
PAPER = dict(zip(WORKERS, (1, 2.1, 3.7, 6.9, 12.5), strict=True))
"""Speed-up of A3C to a fixed score: Table 2 of Mnih et al. 2016."""
DEVICES = (
    "import json; import tensorflow as tf; gpus = tf.config.list_physical_devices('GPU'); "
    "print(json.dumps([tf.config.experimental.get_device_details(gpu) for gpu in gpus], default=str))"
)


@dataclass(frozen=True)
class Part:
    """A part of the study. `seconds`: its timeout with windows of 8 seconds.

    name: a key of `gpu_parts.PARTS`, and the device if the part runs on several.
    without_gpu: whether it runs only on machines without a GPU, instead of the part before it.
    """

    name: str
    seconds: float
    without_gpu: bool = False

    @property
    def needs_gpu(self) -> bool:
        return self.name.endswith(" gpu")


PARTS = (
    Part("replay", 60.0),
    Part("learner gpu", 110.0),
    Part("learner cpu", 200.0, without_gpu=True),
    Part("latency gpu", 60.0),
    Part("boxing gpu", 90.0),
    Part("boxing cpu", 90.0),
    Part("acting gpu", 80.0),
    Part("acting cpu", 150.0, without_gpu=True),
    Part("workers", 130.0),
    Part("latency cpu", 45.0),
)


def find_card() -> dict[str, Any]:
    """Return the GPUs by nvidia-smi and by TensorFlow. Without a GPU, the lists are empty."""
    found: dict[str, Any] = {"nvidia_smi": [], "tensorflow": []}
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CARD_SECONDS, check=False)
        found["nvidia_smi"] = done.stdout.splitlines() if done.returncode == 0 else []
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], capture_output=True, text=True, timeout=CARD_SECONDS, check=False
    )
    if done.returncode == 0:
        found["tensorflow"] = json.loads(done.stdout.splitlines()[-1])
    return found


class Outcomes:
    """The file gpu.json: the machine, its card, and the outcome of each part."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.content: dict[str, Any] = {"parts": {}}
        if path.is_file():
            self.content = json.loads(path.read_text("utf-8"))
        if "card" not in self.content:
            self.content |= {"date": time.strftime("%Y-%m-%d"), "machine": describe_machine(), "card": find_card()}
            self._write()

    @property
    def has_gpu(self) -> bool:
        """Whether TensorFlow finds a GPU."""
        return bool(self.content["card"]["tensorflow"])

    def of(self, part: Part) -> str:
        return str(self.content["parts"].get(part.name, {}).get("outcome", ""))

    def add(self, part: Part, outcome: str, seconds: float) -> None:
        self.content["parts"][part.name] = {"outcome": outcome, "seconds": round(seconds, 1)}
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps(self.content, indent=2) + "\n", encoding="utf-8")


def measure(part: Part, options: argparse.Namespace, seconds: float) -> str:
    """Run a part in a process for at most `seconds`, and return the outcome."""
    own = [str(Path(__file__).resolve()), "--measure", part.name, "--output", str(options.output)]
    own += ["--seconds", str(options.seconds), "--capacity", str(options.capacity)]
    own += [word for key in options.keys for word in ("--set", key)]
    log = options.output / f"gpu-{part.name.replace(' ', '-')}.log"
    run = Running([sys.executable, *own], log, fresh=True)
    try:
        code = run.wait(seconds)
    except AssertionError:  # it still runs
        with contextlib.suppress(AssertionError):
            run.stop(signal.SIGINT, END_SECONDS)
        return TIMEOUT
    finally:
        run.end()
    return DONE if code == 0 else FAILED


def tables(rows: Rows, content: Mapping[str, Any]) -> str:
    """Return the page: machine, bars, and a table of all figures."""
    card, machine, parts = content["card"], content["machine"], content["parts"]
    names = [gpu.get("device_name", "unnamed") for gpu in card["tensorflow"]]
    smi = f" (nvidia-smi: {'; '.join(card['nvidia_smi'])})" if card["nvidia_smi"] else ""
    text = [
        f"{content['date']}, {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_mb'] / 1000:.0f} GB. Card: {', '.join(names) or NO_GPU}{smi}. "
        f"RELAAX {machine['versions']['relaax']}, TensorFlow {machine['versions'].get('tensorflow', 'not installed')}.",
        "| bar | at least | measured |\n|---|---:|---:|\n" + "\n".join(bars(rows, bool(card["tensorflow"]))),
        "| part | case | figures |\n|---|---:|---|\n" + "\n".join(figures_of(rows)),
        "| part | outcome | seconds |\n|---|---|---:|\n"
        + "\n".join(f"| {name} | {one['outcome']} | {one['seconds']:g} |" for name, one in parts.items()),
    ]
    for device in ("gpu", "cpu"):
        speeds = [rows.figures(f"acting {device} {inference}", ACTORS, 1).get("steps/s") for inference in INFERENCE]
        if speeds[0] and speeds[1] is not None:
            text.append(f"One inference process over computing workers ({device}): {speeds[1] / speeds[0]:.2f}.")
    base = rows.figures("workers", 1, 1).get("steps/s")
    if base:
        found = [rows.figures("workers", count, 1).get("steps/s") for count in WORKERS]
        cells = ["–" if speed is None else f"{speed / base:.1f}" for speed in found]
        text.append(
            f"| workers | {' | '.join(map(str, WORKERS))} |\n|---|{'---:|' * len(WORKERS)}\n"
            f"| speed-up in steps/s | {' | '.join(cells)} |\n"
            f"| Table 2 of Mnih et al. 2016 (A3C), to a score | {' | '.join(f'{s:g}' for s in PAPER.values())} |"
        )
    return "\n\n".join(text) + "\n"


def bars(rows: Rows, has_gpu: bool) -> list[str]:
    """Return the lines of the bars: the rates of Ape-X's paper on one machine, and the share of the gradient alone."""
    found = [rows.figures("replay", BATCH, 1).get(name) for name in ("transitions/s", "batches/s")]
    learner, alone = (rows.figures(name, BATCH, 1).get("updates/s") for name in ("learner gpu", "learner gpu alone"))
    found.append(None if learner is None or not alone else learner / alone)
    wanted = {
        "transitions/s into replay memory": "12,500",
        "batches of 512/s out of it, meanwhile": "19",
        "learner on the GPU, of its gradient alone": "0.85",
    }
    missing = ["not measured", "not measured", "not measured" if has_gpu else NO_GPU]
    return [
        f"| {name} | {bar} | {absent if value is None else f'{value:,.4g}'} |"
        for (name, bar), value, absent in zip(wanted.items(), found, missing, strict=True)
    ]


def figures_of(rows: Rows) -> list[str]:
    """Return a line for each case."""
    lines = []
    for part in dict.fromkeys(row.part for row in rows.rows):
        for case in rows.cases(part):
            figures = rows.figures(part, case, 1).items()
            lines.append(f"| {part} | {case} | {', '.join(f'{name} {value:,.4g}' for name, value in figures)} |")
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("gpu-results"), help="folder (%(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window (%(default)g)")
    parser.add_argument(
        "--capacity", type=int, default=CAPACITY, help="transitions of each replay memory (%(default)s)"
    )
    parser.add_argument(
        "--set", dest="keys", action="append", default=[], metavar="KEY=VALUE", help="a setting; repeatable"
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=f"some of {', '.join(names)}")
    parser.add_argument("--measure", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # KeyboardInterrupt: end the child processes
    if options.measure:
        rows = Rows(options.output / "gpu.csv")
        run_part(Study(rows, options.output, options.seconds, options.capacity, options.keys), options.measure)
        return 0
    return measure_all(options, time.monotonic() + TOTAL_SECONDS)


def measure_all(options: argparse.Namespace, ends: float) -> int:
    """Measure all parts until `ends`, and write the tables after each. Return 1 if a part failed."""
    outcomes, begun = Outcomes(options.output / "gpu.json"), time.monotonic()
    for part in PARTS:
        if outcomes.of(part) == DONE or (options.only and part.name not in options.only):
            continue
        if part.without_gpu and outcomes.has_gpu:
            continue
        left, started = min(part.seconds, ends - time.monotonic()), time.monotonic()
        if part.needs_gpu and not outcomes.has_gpu:
            outcome = NO_GPU
        elif left <= END_SECONDS:
            outcome = OUT_OF_TIME
        else:
            outcome = measure(part, options, left)
        outcomes.add(part, outcome, time.monotonic() - started)
        print(f"{time.monotonic() - begun:5.0f} s  {part.name}: {outcome}", flush=True)
        page = tables(Rows(options.output / "gpu.csv"), outcomes.content)
        (options.output / "gpu.md").write_text(page, encoding="utf-8")
    print((options.output / "gpu.md").read_text("utf-8"))
    return int(any(outcomes.of(part) in (FAILED, TIMEOUT) for part in PARTS))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
