#!/usr/bin/env python3
"""Limits of scale, one at a time: simultaneous connections, registered workers with metrics, shards.

storm: N clients connect to an RLX server at the same moment and retry as clients do. Measures the time to each client's
first action.
sessions: N clients of one environment each step 0.2 times a second, like simulators in real time. Measures the time to
each action, and the memory of all servers and workers.
workers: N workers register at a parameter server by gRPC, and each sends a report of its metrics. Measures time and
size of the list of workers, of the status and of the page for Prometheus.
shards: a checkpoint of N shards of a small model, all in this process. Shards of real size take longer to write, but
not longer to agree on a checkpoint.

Prints one line per case. The figures are in the study `scaling`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import secrets
import signal
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gymnasium
import numpy as np
import psutil

from relaax.cli.bench.results import percentile
from relaax.client import Client
from relaax.metrics.system import MEGABYTE
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import parameter_server_pb2_grpc as rpc
from relaax.transport.channel import Target, open_channel
from support.long_vector import configuration, fingerprint_of
from support.parameter_servers import Models, fingerprint
from support.processes import Processes, Running
from support.shards import sharded

CARTPOLE = "da3c_gym_cartpole"
CHANNELS, AT_ONCE = 8, 3
"""Connections to the parameter server, and calls in flight on each (fewer than the server's limit)."""
LONG_SECONDS = 600.0
LIST_BYTES = 2**24
PARAMETERS = 1000
SESSION_RATE = 0.2
"""Steps per second of each session."""
SESSION_SECONDS = 60.0


@contextlib.contextmanager
def service(count: int) -> Iterator[tuple[Running, Running, str]]:
    """Start a parameter server and an RLX server for `count` workers. Yield both, and the latter's address."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        parameter_server, at = processes.start_server(
            *("relaax-parameter-server", "--config", CARTPOLE, "--bind", "127.0.0.1:0"),
            *("--checkpoint-dir", f"{name}/checkpoints", "--metrics-dir", f"{name}/metrics"),
        )
        server, address = processes.start_server(
            *("relaax-rlx-server", "--config", CARTPOLE, "--bind", "127.0.0.1:0"),
            *("--parameter-server", at, "--set", f"relaax-rlx-server.max_workers={count}"),
        )
        yield parameter_server, server, address


def storm(count: int) -> dict[str, float]:
    """Connect `count` clients of one environment at once, and wait until each has an action."""
    with service(count) as (_, server, address):
        begun = time.monotonic()
        times, wrong = first_action_times(address, count)
        spent = time.monotonic() - begun
        refused = sum(" refused " in line for line in server.stderr.splitlines())
    times.sort()
    found = {"all_s": spent, "failed": float(len(wrong)), "refusals_in_the_log": float(refused)}
    return found | {f"p{share}_s": times[int(share / 100 * (len(times) - 1))] for share in (50, 90, 100) if times}


def first_action_times(address: str, count: int) -> tuple[list[float], list[BaseException]]:
    """Return the seconds to each client's first action, and the errors."""
    space = gymnasium.make("CartPole-v1")
    times: list[float] = []
    wrong: list[BaseException] = []
    together, over = threading.Barrier(count + 1), threading.Event()

    def one() -> None:
        try:
            together.wait()
            begun = time.monotonic()
            client = Client(
                address, observation_space=space.observation_space, action_space=space.action_space, retry_seconds=300.0
            )
            with client:
                client.init(np.zeros(4, np.float32))
                times.append(time.monotonic() - begun)
                over.wait()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    together.wait()
    deadline = time.monotonic() + LONG_SECONDS
    while len(times) + len(wrong) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    over.set()
    for thread in threads:
        thread.join(5)
    return times, wrong


def sessions(count: int) -> dict[str, float]:
    """Connect `count` clients of one environment, and step each for SESSION_SECONDS at its own phase."""
    with service(count) as (parameter_server, server, address):
        begun = time.monotonic()
        clients = SlowClients(address, count)
        joined, joining = clients.wait_until_joined(), time.monotonic() - begun
        megabytes = sum(map(memory_megabytes, (parameter_server.pid, server.pid)))
        before = psutil.cpu_times()
        clients.steps(SESSION_SECONDS)
        after = psutil.cpu_times()
        refused = sum(" refused " in line for line in server.stderr.splitlines())
        megabytes = max(megabytes, sum(map(memory_megabytes, (parameter_server.pid, server.pid))))
        served, seconds = clients.close(), sorted(clients.seconds)
    busy = sum(after) - sum(before) - (after.idle - before.idle)
    return {
        "joined": float(joined),
        "joined_s": joining,
        "served": float(served),
        "refusals_in_the_log": float(refused),
        "steps": float(len(seconds)),
        **{f"p{share}_ms": 1e3 * percentile(seconds, share / 100) for share in (50, 99, 100)},
        "gigabytes": megabytes / 1e3,
        "cores_busy": busy / SESSION_SECONDS,
    }


class SlowClients:
    """Clients of one environment each, in threads, that step at SESSION_RATE. `seconds`: of each action."""

    def __init__(self, address: str, count: int) -> None:
        self.seconds: list[float] = []
        self._address, self._count = address, count
        self._joined, self._served = threading.Semaphore(0), threading.Semaphore(0)
        self._begin, self._over = threading.Event(), threading.Event()
        self._until = 0.0
        self._space = gymnasium.make("CartPole-v1")
        self._failures: list[BaseException] = []
        phases = np.random.default_rng(0).uniform(0, 1 / SESSION_RATE, count)
        self._threads = [threading.Thread(target=self._run, args=(phase,), daemon=True) for phase in phases]
        for thread in self._threads:
            thread.start()

    def _run(self, phase: float) -> None:
        spaces = {"observation_space": self._space.observation_space, "action_space": self._space.action_space}
        try:
            with Client(self._address, retry_seconds=300.0, **spaces) as client:
                client.init(np.zeros(4, np.float32))
                self._joined.release()
                self._begin.wait()
                due = time.monotonic() + phase
                while due < self._until:
                    self._over.wait(max(0.0, due - time.monotonic()))
                    begun = time.monotonic()
                    client.send(1.0, np.zeros(4, np.float32))
                    self.seconds.append(time.monotonic() - begun)
                    due += 1 / SESSION_RATE
                self._served.release()
                self._over.wait()
        except BaseException as error:
            self._failures.append(error)
            self._joined.release()
            self._served.release()

    def wait_until_joined(self) -> int:
        """Wait until every client has an action or has failed. Return how many have one."""
        for _ in self._threads:
            if not self._joined.acquire(timeout=LONG_SECONDS):
                break
        return self._count - len(self._failures)

    def steps(self, seconds: float) -> None:
        """Let the clients step for `seconds`, and wait for their last answers."""
        self._until = time.monotonic() + seconds
        self._begin.set()
        for _ in self._threads:
            if not self._served.acquire(timeout=LONG_SECONDS):
                break

    def close(self) -> int:
        """Disconnect. Return how many clients had no failure."""
        served = self._count - len(self._failures)
        self._over.set()
        for thread in self._threads:
            thread.join(LONG_SECONDS)
        return served


def memory_megabytes(pid: int) -> float:
    """Return the memory of a process and its descendants, with shared pages divided among them (PSS)."""
    process = psutil.Process(pid)
    total = 0.0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += one.memory_full_info().pss / MEGABYTE
    return total


def workers(count: int) -> dict[str, float]:
    """Register `count` workers, send a report of each, then measure the list, the status and the metrics page."""
    with tempfile.TemporaryDirectory() as name, Processes(Path(name)) as processes:
        path = configuration(Path(name), PARAMETERS)
        server, address = processes.start_server(
            "relaax-parameter-server", "--config", path, "--status-bind", "127.0.0.1:0"
        )
        status = server.wait_for_line("http://").split("http://")[1].split()[0].split("/")[0]
        before = psutil.Process(server.pid).memory_info().rss / MEGABYTE
        ids, described = [secrets.token_hex(16) for _ in range(count)], fingerprint_of(path)
        channels = [open_channel(Target(address)) for _ in range(CHANNELS)]
        stubs = [rpc.ParameterServerServiceStub(channel) for channel in channels]
        stub = stubs[0]
        registered = [
            pb.RegisterRequest(
                worker_id=one,
                session_id=one,
                environments=1,
                fingerprint=described,
                role=pb.ROLE_TRAIN,
                frame_skip=1,
                environment="CartPole-v1",
                host=f"host{number % 100}",
                server=f"10.0.0.{number % 100}:7001",
            )
            for number, one in enumerate(ids)
        ]
        each_register = seconds_per_request([stub.Register for stub in stubs], registered)
        reports = [pb.ReportRequest(worker_id=one, report_id=1, report=report()) for one in ids]
        each_report = seconds_per_request([stub.Report for stub in stubs], reports)
        with open_channel(Target(address), LIST_BYTES) as channel:  # like `relaax top`
            lists = rpc.ParameterServerServiceStub(channel).ListWorkers
            list_s, listed = timed(lambda: lists(pb.ListWorkersRequest(), timeout=LONG_SECONDS))
        status_s, _ = timed(lambda: stub.GetStatus(pb.GetStatusRequest(), timeout=LONG_SECONDS))
        page_s, page = timed(lambda: urllib.request.urlopen(f"http://{status}/metrics", timeout=LONG_SECONDS).read())
        after = psutil.Process(server.pid).memory_info().rss / MEGABYTE
        for channel in channels:
            channel.close()
        if len(listed.workers) != count:
            raise RuntimeError(f"{len(listed.workers)} of {count} workers are listed")
    return {
        "register_us": 1e6 * each_register,
        "report_us": 1e6 * each_report,
        "list_ms": 1e3 * list_s,
        "list_kb": listed.ByteSize() / 1e3,
        "status_ms": 1e3 * status_s,
        "page_ms": 1e3 * page_s,
        "page_kb": len(page) / 1e3,
        "server_mb_more": after - before,
    }


def report() -> pb.MetricsReport:
    """Return a report like that of a da3c worker, sent about every five seconds: scalars, latencies, resources."""
    names = ("loss/policy", "loss/value", "policy/entropy", "gradient/norm", "value/mean", "learn/seconds")
    return pb.MetricsReport(
        episodes=[pb.EpisodeResult(episode_return=20.0, length=20)] * 3,
        scalars=[pb.ScalarSum(name=name, sum=1.0, count=10) for name in names],
        histograms=[pb.Histogram(name="latency/act_ms", buckets=list(range(20)), counts=[5] * 20)],
        gauges=[pb.Gauge(name=f"worker/{name}", value=10.0) for name in ("memory_mb", "cpu_percent")],
    )


def seconds_per_request(calls: Sequence[Any], requests: Sequence[Any]) -> float:
    """Return the mean seconds per request, with `AT_ONCE` requests in flight on each channel."""
    begun, together = time.monotonic(), AT_ONCE * len(calls)
    for first in range(0, len(requests), together):
        batch = requests[first : first + together]
        for future in [calls[i % len(calls)].future(one, timeout=LONG_SECONDS) for i, one in enumerate(batch)]:
            future.result()
    return (time.monotonic() - begun) / len(requests)


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.monotonic()
    result = call()
    return time.monotonic() - begun, result


def shards(count: int) -> dict[str, float]:
    """Write checkpoints of `count` shards of 1,000 parameters each."""
    with tempfile.TemporaryDirectory() as name:
        description = fingerprint(size=PARAMETERS * count)
        begun = time.monotonic()
        with sharded(count, Models(), Path(name), description=description) as found:
            serving = time.monotonic() - begun
            taken = []
            for number in range(5):
                update(found.addresses, description, number, PARAMETERS * count)
                seconds, saved = timed(found.save)
                if not saved:
                    raise RuntimeError("no checkpoint was written")
                taken.append(seconds)
        return {"serving_s": serving, "save_ms": 1e3 * statistics.median(taken), "longest_ms": 1e3 * max(taken)}


def update(addresses: Sequence[str], description: str, number: int, size: int) -> None:
    """Push a gradient, so that a new checkpoint is due."""
    from relaax.parameters.client import ParameterClient
    from relaax.parameters.interfaces import Registration

    client = ParameterClient([Target(address) for address in addresses])
    try:
        client.register(Registration(description))
        client.pull()
        client.push(np.full(size, number + 1, np.float32), 1)
    finally:
        client.close()


STUDIES: dict[str, tuple[Callable[[int], dict[str, float]], tuple[int, ...]]] = {
    "storm": (storm, (500,)),
    "sessions": (sessions, (1_000,)),
    "workers": (workers, (1_000, 10_000)),
    "shards": (shards, (1, 4, 16, 64, 100)),
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", choices=tuple(STUDIES), metavar="STUDY", help=f"some of {', '.join(STUDIES)}"
    )
    parser.add_argument(
        "--cases", type=int, nargs="+", metavar="N", help="cases to measure instead of the studies' own"
    )
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.disable(logging.WARNING)  # each shard logs a warning when another one ends
    for name in given.only or STUDIES:
        study, cases = STUDIES[name]
        for case in given.cases or cases:
            shown = ", ".join(f"{figure} {value:,.4g}" for figure, value in study(case).items())
            print(f"{name} {case:,}: {shown}", flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)
