"""A fuzz run: a server, honest clients and fuzz cases, and the checks at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from support.fuzz_memory import MAX_FRAME_MEGABYTES
from support.fuzz_wire import Report, honest_clients, send_cases
from support.offline import start_offline_server
from support.processes import Processes, Running
from support.resource_leaks import expect_clean_log, expect_no_leak, resources_of
from support.websocket_relay import WebSocketRelay

ALGORITHM = Path(__file__).with_name("fuzz_algorithm.py")
WARM = 200  # connections after which the memory of a server is stable


def start_fuzzed_server(processes: Processes, folder: Path) -> tuple[Running, str]:
    """Start an RLX server for fuzz cases. Return it and its address."""
    return start_offline_server(
        processes,
        folder,
        algorithm={"path": str(ALGORITHM)},
        max_frame_megabytes=MAX_FRAME_MEGABYTES,
        log_level="WARNING",
        memory_reserve=0,
        parameters="values",
    )


def fuzz(
    processes: Processes,
    folder: Path,
    *,
    frames: int,
    seed: int,
    first: int = 0,
    threads: int = 8,
    websocket: bool = False,
    progress: Callable[[Report], None] = lambda _: None,
) -> tuple[Report, str]:
    """Send `frames` mutated frames to a server. Return the report and a table of it.

    Raises AssertionError if a case fails, an honest client is not served, or the server leaks resources.
    """
    server, address = start_fuzzed_server(processes, folder)
    relay = WebSocketRelay(address) if websocket else None
    target = relay.address if relay is not None else address
    with honest_clients(address):
        send_cases(
            target,
            seed,
            first=10**9,
            frames=10**9,
            report=Report(),
            threads=threads,
            connections=min(WARM, 10 + frames // 200),
            websocket=websocket,
        )
    before = resources_of(server)
    report, begun = Report(), time.monotonic()
    with relay or contextlib.nullcontext(), honest_clients(address) as served:
        send_cases(target, seed, first, frames, report, threads, progress, websocket=websocket)
    seconds = time.monotonic() - begun
    failures = "\n\n".join(report.failures)
    assert not report.failures, f"{len(report.failures)} cases failed\n{failures}"
    for client in served:
        assert client.steps > 0
    after = expect_no_leak(server, before)
    expect_clean_log(server)
    assert server.stop() == 0
    ends = ", ".join(f"{name} {count:,}" for name, count in report.ends.most_common())
    honest = "; ".join(
        f"{g.codec} {g.steps:,} steps on {g.connections:,} connections, longest wait {g.longest:.2f} s" for g in served
    )
    return report, "\n".join(
        (
            f"frames sent to the server      {report.frames:,} on {report.connections:,} connections",
            f"frames it read before closing  {report.read:,}",
            f"frames at clients in memory    {report.at_clients:,} read",
            f"how connections ended          {ends}",
            f"answers cut by a reset         {report.resets:,} connections",
            f"honest clients                 {honest}",
            f"server's own memory            {before.megabytes:.1f} MB before, {after.megabytes:.1f} MB after",
            f"descriptors                    {before.descriptors} before, {after.descriptors} after",
            f"time                           {seconds:,.0f} s, {report.frames / seconds:,.0f} frames/s",
        )
    )
