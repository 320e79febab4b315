"""A run of a service in alternating windows with and without hostile clients, and measurements of it."""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from relaax.checkpoint import CheckpointManager, LocalStore, StoreError
from relaax.checkpoint.checkpoint import Damaged
from support.processes import Processes, Running, wait_until
from support.resource_leaks import expect_clean_log
from support.scrape import health, status_url
from support.service import PARAMETER_SERVER, RLX_SERVER, status_of, write_service_config
from support.websocket_relay import WebSocketRelay

HERE = Path(__file__).resolve().parent
MEGABYTE = 2**20
SETTLE = 2.0  # seconds of each window that do not count: connections of the previous window are still closing
MEMORY_MEGABYTES = 192.0  # maximum growth of a server after the first windows
MANIFEST_BYTES = 4_000_000
ANSWER_SECONDS = 20.0  # maximum seconds of a status on a busy machine


@dataclass(frozen=True)
class Plan:
    """The parameters of a run of `seconds`, in windows of `window` seconds.

    `honest`: number of honest clients, each with `rate` steps per second. `hostile`: number of hostile clients at a
    time. `share`: the least fraction of their rate that honest clients must keep during windows with hostile
    clients. Other load on the machine reduces this fraction too. `websocket`: hostile clients and every second honest
    client use WebSocket.
    """

    seconds: float = 180.0
    seed: int = 1
    window: float = 20.0
    honest: int = 4
    rate: float = 15.0
    hostile: int = 3
    share: float = 0.85
    websocket: bool = False


@dataclass(frozen=True)
class Sample:
    """A sample of the servers' own memory (MB) and the progress of training. `time`: of time.monotonic."""

    time: float
    memory: dict[str, float]
    global_step: int
    updates: int
    workers: int
    children: int


class Watch:
    """A thread that polls both servers every second and reads every published checkpoint."""

    def __init__(self, servers: dict[str, Running], address: str, store: LocalStore) -> None:
        self.samples: list[Sample] = []
        self.manifests: dict[str, int] = {}
        """Ids of the checkpoints that were read, and the sizes of their manifests in bytes."""
        self.failures: list[str] = []
        self.slowest = 0.0
        self._servers, self._address = servers, address
        self._urls = {name: status_url(server) for name, server in servers.items()}
        self._manager = CheckpointManager(store)
        self._folder = Path(store.location.removeprefix("file://"))
        for name, url in self._urls.items():  # a status port answers 503 before its server's first sample
            wait_until(lambda url=url: health(url)[0] == 200, f"the {name} is ready", 60)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop polling, and read the last checkpoints."""
        self._stop.set()
        self._thread.join()
        self._read_checkpoints()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            try:
                self._poll()
                self._read_checkpoints()
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")

    def _poll(self) -> None:
        begun = time.monotonic()
        status = status_of(self._address)
        for name, url in self._urls.items():
            code, text = health(url)
            if code != 200:
                self.failures.append(f"health of {name} is {code}: {text}")
        self.slowest = max(self.slowest, time.monotonic() - begun)
        memory = {name: _own_megabytes(server.pid) for name, server in self._servers.items()}
        children = len(psutil.Process(self._servers["rlx-server"].pid).children(recursive=True))
        self.samples.append(
            Sample(time.monotonic(), memory, status.global_step, status.updates, status.workers, children)
        )

    def _read_checkpoints(self) -> None:
        for checkpoint_id in self._manager.published():
            if checkpoint_id in self.manifests:
                continue
            try:
                self._manager.load(checkpoint_id)
                self.manifests[checkpoint_id] = (self._folder / checkpoint_id / "manifest.json").stat().st_size
            except (Damaged, StoreError, OSError) as error:
                if checkpoint_id in self._manager.published():  # it was not deleted in the meantime
                    self.failures.append(f"{checkpoint_id}: {error}")


def run_hostile(
    processes: Processes, folder: Path, plan: Plan, log: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run a service with hostile clients, and return the summary. Raises AssertionError if a check fails."""
    config = _configuration(folder)
    parameter_server, shard = processes.start_server(*PARAMETER_SERVER, "--config", config)
    rlx_server, address = processes.start_server(*RLX_SERVER, "--config", config, "--parameter-server", shard)
    files = [folder / f"honest-{number}.jsonl" for number in range(plan.honest)]
    alternative = f"ws://{address}" if plan.websocket else address
    clients = [
        processes.start(
            sys.executable, HERE / "honest_client.py", (address, alternative)[number % 2], str(plan.rate), file
        )
        for number, file in enumerate(files)
    ]
    watch = Watch(
        {"parameter-server": parameter_server, "rlx-server": rlx_server}, shard, LocalStore(folder / "checkpoints")
    )
    wait_until(lambda: all(_steps(file) for file in files), "honest clients are served", 120)
    begun = time.monotonic()
    windows: list[dict[str, Any]] = []
    connections: Counter[str] = Counter()
    relay = WebSocketRelay(address) if plan.websocket else None
    target = relay.address if relay is not None else address
    try:
        while time.monotonic() - begun < plan.seconds:
            for hostile in (False, True):
                attackers = _start_hostile_clients(processes, target, plan, len(windows)) if hostile else None
                start = time.monotonic()
                _wait(start + plan.window, clients)
                window = {
                    "start": round(start - begun, 1),
                    "hostile": hostile,
                    "at": (start + SETTLE, time.monotonic()),
                }
                if attackers is not None:
                    attackers.end()
                    connections.update(line.partition(" ")[2] for line in attackers.lines)
                    assert "Traceback" not in attackers.stderr, attackers.stderr
                window["rate"] = steps_per_second(files, *window.pop("at"))
                windows.append(window)
                log(f"{'hostile' if hostile else 'quiet':8} {window['rate']:7.1f} steps/s, {watch.samples[-1]}")
    finally:
        watch.close()
        if relay is not None:
            relay.close()
    for client in clients:
        assert client.returncode is None, f"an honest client has ended\n{client.report()}"
        client.end()
    assert parameter_server.stop(timeout=120) == 0, parameter_server.report()
    watch.close()
    summary = _summary(plan, windows, connections, watch, begun, files)
    for server in (parameter_server, rlx_server):
        expect_clean_log(server)
    assert rlx_server.stop(timeout=60) == 0, rlx_server.report()
    _check(plan, summary, watch)
    return summary


def _configuration(folder: Path) -> Path:
    path = write_service_config(folder)
    document = json.loads(path.read_text(encoding="utf-8"))
    document["relaax-parameter-server"] |= {"status-bind": "127.0.0.1:0", "checkpoint-interval": 5}
    document["relaax-rlx-server"] |= {"status-bind": "127.0.0.1:0"}
    document["algorithm"] |= {"max_global_step": 10**15}  # clients cannot reach it: see docs/security.md
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def _start_hostile_clients(processes: Processes, address: str, plan: Plan, window: int) -> Running:
    first = window * 10**6
    numbers = (str(plan.seed), str(first), str(plan.hostile))
    return processes.start(sys.executable, HERE / "hostile_clients.py", address, *numbers)


def _wait(end: float, clients: list[Running]) -> None:
    """Wait until the time `end`. Raises AssertionError if an honest client ends."""
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(0.5, left))
        for client in clients:
            assert client.returncode is None, f"an honest client has ended\n{client.report()}"


def _lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _steps(file: Path) -> int:
    lines = _lines(file)
    return int(lines[-1]["steps"]) if lines else 0


def steps_per_second(files: list[Path], start: float, end: float) -> float:
    """Return the steps per second of all honest clients together, from their measurements in that time."""
    total = 0.0
    for file in files:
        inside = [(line["time"], line["steps"]) for line in _lines(file) if start <= line["time"] <= end]
        before = [line["steps"] for line in _lines(file) if line["time"] < start]
        total += (inside[-1][1] if inside else before[-1]) - (before[-1] if before else 0)
    return total / (end - start)


def _own_megabytes(pid: int) -> float:
    """Return the anonymous memory of a process, including what it shares with its workers."""
    return sum(float(part.anonymous) for part in psutil.Process(pid).memory_maps()) / MEGABYTE


def _summary(
    plan: Plan, windows: list[dict[str, Any]], connections: Counter[str], watch: Watch, begun: float, files: list[Path]
) -> dict[str, Any]:
    rates = {
        hostile: statistics.median(window["rate"] for window in windows if window["hostile"] is hostile)
        for hostile in (False, True)
    }
    warm = begun + 2 * plan.window
    memory: dict[str, dict[str, float]] = {}
    for name in watch.samples[-1].memory:
        early = [sample.memory[name] for sample in watch.samples if sample.time <= warm]
        late = [sample.memory[name] for sample in watch.samples if sample.time > warm] or early[-1:]
        memory[name] = {
            "first_windows_mb": round(max(early), 1),
            "largest_mb": round(max(early + late), 1),
            "last_mb": round(late[-1], 1),
        }
    return {
        "seed": plan.seed,
        "seconds": round(time.monotonic() - begun),
        "windows": windows,
        "conversations": dict(connections.most_common()),
        "honest_clients": plan.honest,
        "honest_steps": sum(map(_steps, files)),
        "honest_rate_quiet": round(rates[False], 1),
        "honest_rate_hostile": round(rates[True], 1),
        "share": round(rates[True] / rates[False], 3),
        "global_step": watch.samples[-1].global_step,
        "updates": watch.samples[-1].updates,
        "longest_without_update": round(_longest_standstill(watch.samples), 1),
        "memory": memory,
        "checkpoints_read": len(watch.manifests),
        "largest_manifest_bytes": max(watch.manifests.values()),
        "slowest_status_seconds": round(watch.slowest, 2),
        "most_workers": max(sample.workers for sample in watch.samples),
        "samples": [
            {
                "seconds": round(sample.time - begun, 1),
                **{f"{name}_mb": round(megabytes, 1) for name, megabytes in sample.memory.items()},
                "global_step": sample.global_step,
                "updates": sample.updates,
                "workers": sample.workers,
                "processes": sample.children,
            }
            for sample in watch.samples
        ],
        "manifests": list(watch.manifests.values()),
    }


def _longest_standstill(samples: list[Sample]) -> float:
    longest, since = 0.0, samples[0]
    for sample in samples:
        longest = max(longest, sample.time - since.time)
        if sample.updates > since.updates:
            since = sample
    return longest


def _check(plan: Plan, summary: dict[str, Any], watch: Watch) -> None:
    assert not watch.failures, f"{len(watch.failures)} failures: {watch.failures[:5]}"
    assert sum(summary["conversations"].values()) >= 10, summary["conversations"]
    assert summary["share"] >= plan.share, f"honest clients kept {summary['share']} of their rate: {summary['windows']}"
    assert summary["longest_without_update"] < 30, summary["longest_without_update"]
    for name, found in summary["memory"].items():
        assert found["largest_mb"] < found["first_windows_mb"] + MEMORY_MEGABYTES, (name, found)
    assert summary["largest_manifest_bytes"] < MANIFEST_BYTES, summary["largest_manifest_bytes"]
    assert summary["checkpoints_read"] >= summary["seconds"] / 30, summary["checkpoints_read"]
    assert summary["slowest_status_seconds"] < ANSWER_SECONDS, summary["slowest_status_seconds"]
