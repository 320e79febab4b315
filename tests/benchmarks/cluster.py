#!/usr/bin/env python3
"""Training on a Ray cluster: cost, scaling, overload, elasticity, and crashes of machines.

cost: CartPole by `relaax run` and by `relaax run --on ray` on one machine, alternating.
linear: environments throttled to 30 steps/s, on 1, 2 and 4 machines.
overload: an RLX server whose 32 places are taken, with and without 96 further clients that try to connect.
elastic: 0, 128, 32 and 0 environments in turn, with Ray's autoscaler.
crashes: four machines; one of them crashes each minute.
cut-off: a machine is disconnected from the network, for 30 seconds and then for 5 minutes.

Machines are network namespaces, which need root. They share the processors of this machine. Writes cluster.csv and the
tables of the study `cluster`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from relaax_runs import ROOT
from rows import Rows, study_page, write_tables

from relaax import rlx
from relaax.cli.run.progress import ProgressReader
from support.cluster_crashes import CrashScene
from support.cluster_training import ClusterTraining, connections_of, of_role
from support.elastic import CLIENT, TOKEN, scale_up_and_down
from support.namespaces import Namespaces, can_make_namespaces
from support.processes import Processes, Running
from support.ray_nodes import RayNodes
from support.rlx_line import Line
from support.rlx_pair import make_hello

CARTPOLE = "da3c_gym_cartpole"
PARTS = ("cost", "linear", "overload", "elastic", "crashes", "cut-off")
LINEAR = ((1, 4), (1, 16), (1, 64), (2, 4), (2, 16), (2, 64), (4, 4), (4, 16), (4, 64), (4, 128))
RATE = 30.0
PLACES, KNOCKING, RATE_OF_FULL = 32, 96, 4.0
Figures = dict[str, float]


def cost(seconds: float) -> Figures:
    """Train without Ray, then with Ray, for `seconds` each. Return both speeds in steps per second, and their ratio."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes, RayNodes(processes) as nodes:
        nodes.start(0, 8)
        found = {}
        for where, words in (("here", []), ("ray", ["--on", "ray"])):
            folder = Path(name) / where
            done = nodes.relaax(
                *("run", CARTPOLE, *words, "--run-dir", str(folder), "--max-time", f"{seconds:g}", "--clients", "2"),
                *("--set", "algorithm.max_global_step=1e12", "--set", "run.target_return=null"),
            )
            assert done.returncode == 0, done.stdout + done.stderr
            found[where] = float(json.loads((folder / "summary.json").read_text("utf-8"))["steps_per_second"])
    return {**found, "ratio": found["ray"] / found["here"]}


def linear(machines: int, environments: int, seconds: float) -> Figures:
    """Return the steps per second used in training, with throttled environments spread over machines."""
    with (
        tempfile.TemporaryDirectory() as name,
        Processes(Path(name)) as processes,
        Namespaces(machines, 1.0, 1.0) as network,
        RayNodes(processes, network) as nodes,
    ):
        nodes.environment["RELAAX_PARAMETER_SERVER_TOKEN"] = TOKEN
        for index in range(machines):
            nodes.start(index, 8)
        keys = {
            "run.connections_per_client": environments // machines,
            "run.clients": machines,
            "run.envs_per_client": 1,
            "run.arguments": json.dumps(["--rate", f"{RATE:g}"]),
            "algorithm.max_global_step": 10**12,
            "run.target_return": "null",
        }
        words = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        with ClusterTraining(nodes, CARTPOLE, Path(name), *words) as training:
            status = training.wait_until(lambda status: connections_of(status) == environments, "all are connected")
            address = of_role(status, "parameter-server")[0]["address"]
            reader = ProgressReader(TOKEN)
            time.sleep(5.0)
            first, begin = reader.poll(address), time.monotonic()
            time.sleep(seconds)
            last, end = reader.poll(address), time.monotonic()
            reader.close()
            training.stop()
    found = (last.global_step - first.global_step) / (end - begin)
    return {"steps_per_second": found, "of_linear": found / (RATE * environments)}


def overload(seconds: float) -> Figures:
    """Fill an RLX server. Measure actions without and with refused clients, and the time of a refusal."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        _, parameter_server = processes.start_server(
            *("relaax-parameter-server", "--config", CARTPOLE, "--bind", "127.0.0.1:0"),
            *("--checkpoint-dir", f"{name}/checkpoints", "--set", "algorithm.max_global_step=1e12"),
        )
        _, address = processes.start_server(
            *(
                "relaax-rlx-server",
                "--config",
                CARTPOLE,
                "--bind",
                "127.0.0.1:0",
                "--set",
                "algorithm.max_global_step=1e12",
            ),
            *("--parameter-server", parameter_server, "--set", f"rlx-server.max_workers={PLACES}"),
        )
        quiet = _act_p99(processes, address, seconds)
        admitted = _start(processes, address, PLACES)
        admitted.wait_for_line(f"admitted {PLACES}", 120.0)
        knocking = _start(processes, address, KNOCKING)
        time.sleep(5.0)
        admitted.send_signal(signal.SIGUSR1)
        refusals = _refusals(address, seconds)
        loud = _p99(admitted)
        knocking.kill()
    return {
        "act_p99_ms": quiet,
        "act_p99_ms_overloaded": loud,
        "ratio": loud / quiet,
        "refusal_p50_ms": float(np.percentile(refusals, 50)),
        "refusal_p99_ms": float(np.percentile(refusals, 99)),
    }


def _act_p99(processes: Processes, address: str, seconds: float) -> float:
    running = _start(processes, address, PLACES)
    running.wait_for_line(f"admitted {PLACES}", 120.0)
    time.sleep(5.0)
    running.send_signal(signal.SIGUSR1)
    time.sleep(seconds)
    return _p99(running)


def _start(processes: Processes, address: str, connections: int) -> Running:
    return processes.start(sys.executable, CLIENT, address, str(connections), f"{RATE_OF_FULL:g}")


def _p99(running: Running) -> float:
    assert running.stop(signal.SIGTERM, 120.0) == 0, running.report()
    return float(np.percentile(json.loads(running.lines[-1])["act_ms"], 99))


def _refusals(address: str, seconds: float) -> list[float]:
    """Connect about ten times per second. Return the milliseconds from each connect to its refusal."""
    found, deadline = [], time.monotonic() + seconds
    while time.monotonic() < deadline:
        begin = time.perf_counter()
        with Line(address) as line:
            line.send(make_hello())
            error = line.receive()
            assert isinstance(error, rlx.Error), error
            assert error.retry_after_seconds, "no retry_after_seconds"
        found.append((time.perf_counter() - begin) * 1e3)
        time.sleep(0.1)
    return found


def elastic() -> Figures:
    """Scale up to 128 environments and down to 0."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        seen = scale_up_and_down(processes, Path(name), 4, 32, 2.0, report_progress)
    return {
        "most_servers": max(servers for _, _, servers, _ in seen.course),
        "most_machines": max(machines for _, _, _, machines in seen.course),
        "last_machines": seen.course[-1][3],
        "up_seconds": seen.up,
        "down_seconds": seen.down,
        "episodes": seen.episodes,
        "episodes_lost": seen.episodes - seen.counted,
    }


def crashes(count: int, cut_off: Sequence[float], every: float) -> Figures:
    """Crash `count` machines in turn, `every` seconds apart, then disconnect one for each duration in `cut_off`."""
    with (
        tempfile.TemporaryDirectory() as name,
        Processes(Path(name)) as processes,
        Namespaces(4, 1.0, 1.0) as network,
        RayNodes(processes, network) as nodes,
    ):
        scene = CrashScene(network, nodes, Path(name), report_progress)
        with scene.training:
            archive = scene.archive()
            scene.wait_for_recovery(time.monotonic())
            scene.crash_in_turn(count, every)
            for seconds in cut_off:
                scene.disconnect(scene.machine_with("parameter-server"), seconds)
            seen = scene.end(archive)
    times = [seconds for _, seconds in seen.recoveries]
    return {
        "faults": len(times),
        "again_median_seconds": statistics.median(times),
        "again_longest_seconds": max(times),
        "updates_of_the_last_life": sum(seen.account.kept),
        "violations": len(seen.account.violations),
        "steps": seen.steps,
    }


def report_progress(sentence: str) -> None:
    """Print a line of progress."""
    print(f"  {sentence}", flush=True)


def table(rows: Rows, part: str) -> str:
    """Return the table of a part: medians of the rounds of each case."""
    lines = []
    for case in rows.cases(part):
        rounds = rows.rounds(part, case)
        names = list(rounds[0])
        if not lines:
            lines += [f"| {part} | {' | '.join(names)} | rounds |", "|---" * (len(names) + 2) + "|"]
        cells = [f"{statistics.median(one[name] for one in rounds):,.4g}" for name in names]
        lines.append(f"| {case} | {' | '.join(cells)} | {len(rounds)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="(all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of cost and overload (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window (%(default)s)")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results", help="folder (docs/results)")
    given = parser.parse_args(arguments)
    if not can_make_namespaces():
        parser.error("network namespaces need root and the command ip (iproute2)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given.output.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.output / "cluster.csv")

    def measure(part: str, case: int, rounds: int, measured: Callable[[], Figures]) -> None:
        for round_ in range(1, rounds + 1):
            if part in given.only and not rows.has(part, case, round_):
                found = measured()
                rows.add(part, case, round_, found)
                print(f"{part} {case}, round {round_}: {found}", flush=True)

    measure("cost", 1, given.rounds, lambda: cost(given.seconds))
    for machines, environments in LINEAR:
        case = 1000 * machines + environments
        measure("linear", case, 1, lambda m=machines, e=environments: linear(m, e, given.seconds))
    measure("overload", PLACES + KNOCKING, given.rounds, lambda: overload(given.seconds))
    measure("elastic", PLACES + KNOCKING, 1, elastic)
    measure("crashes", 10, 1, lambda: crashes(10, [], 60.0))
    measure("cut-off", 2, 1, lambda: crashes(0, [30.0, 300.0], 0.0))
    for part in PARTS:
        if rows.cases(part):
            write_tables(study_page(given.output, "cluster"), part, table(rows, part))
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
