"""A fuzz run: a server, honest clients, and everybody else's cases; and what must be true at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from support.fuzz_memory import MAX_FRAME_MEGABYTES
from support.fuzz_wire import Report, bombard, honest_clients
from support.offline import start_offline_server
from support.processes import Processes, Running
from support.resource_leaks import expect_clean_log, expect_no_leak, resources_of
from support.websocket_relay import WebSocketRelay

ALGORITHM = Path(__file__).with_name("fuzz_algorithm.py")
WARM = 200  # connections after which a server has taken what it keeps


def start_fuzzed_server(processes: Processes, folder: Path) -> tuple[Running, str]:
    """The server and its address."""
    return start_offline_server(
        processes,
        folder,
        algorithm={"path": str(ALGORITHM)},
        max_frame_megabytes=MAX_FRAME_MEGABYTES,
        log_level="WARNING",
        memory_reserve=0,
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
    """Send so many frames, over WebSocket if asked. Returns what came of them, and a table of it.

    Raises AssertionError if it went wrong.
    """
    server, address = start_fuzzed_server(processes, folder)
    relay = WebSocketRelay(address) if websocket else None
    target = relay.address if relay is not None else address
    with honest_clients(address):
        bombard(
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
    report, began = Report(), time.monotonic()
    with relay or contextlib.nullcontext(), honest_clients(address) as served:
        bombard(target, seed, first, frames, report, threads, progress, websocket=websocket)
    seconds = time.monotonic() - began
    failures = "\n\n".join(report.failures)
    assert not report.failures, f"{len(report.failures)} cases have failed\n{failures}"
    for guest in served:
        assert guest.steps > 0
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
