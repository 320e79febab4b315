"""The plan as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from relaax.cli.fitting import Column, FittingTable
from relaax.planning.advice import Advice
from relaax.planning.forecast import Forecast
from relaax.planning.workload import MachineSize, Workload

ENDLESS = 10**9


def table(forecast: Forecast, title: str) -> FittingTable:
    """Return a row for each kind of process."""
    result = FittingTable(
        title, Column("part", left=True), Column("processes"), Column("machines"), Column("cores"),
        Column("memory GB"), Column("MB each", spare=3), Column("in Gbit/s", spare=1), Column("out Gbit/s", spare=2),
        Column("used"), Column("up to"),
    )  # fmt: skip
    for part in forecast.parts:
        result.add_row(
            part.name,
            f"{part.processes:,}",
            "shared" if part.machines is None else f"{part.machines:,}",
            f"{part.cores:,.2f}",
            f"{part.gigabytes:,.2f}",
            f"{part.process_mb:,.0f}",
            f"{part.in_gigabits:,.3f}",
            f"{part.out_gigabits:,.3f}",
            f"{part.used:.0%}",
            "grows" if part.grows and part.machines is not None else _environments(part.breaks_at),
        )
    return result


def _environments(count: int) -> str:
    return "any number" if count > ENDLESS else f"{count:,}"


def sentences(
    workload: Workload, forecast: Forecast, size: MachineSize, hints: Sequence[Advice], sources: Sequence[str]
) -> Iterator[str]:
    """Yield what is to be expected, what breaks first, what would help, and where the figures come from."""
    wish = "as fast as they go" if workload.rate is None else f"{workload.rate:g} steps/s each"
    reached = forecast.steps_per_second
    yield (
        f"{workload.environments:,} environments, {wish}: {reached:,.0f} steps/s"
        + ("" if forecast.enough else f" of {forecast.wanted_steps_per_second:,.0f} that they would take")
    )
    many = "1 machine" if forecast.machines == 1 else f"{forecast.machines:,} machines"
    yield (
        f"{many} of {size.cores} cores, {size.gigabytes:g} GB and {size.gigabits:g} Gbit/s; "
        f"RLX servers: {forecast.rlx_servers:,} for {forecast.connections:,} connections; "
        f"parameters by {forecast.bridge.replace('_', ' ')}"
    )
    yield f"an action: p50 {forecast.act_p50_ms:.2f}, p99 {forecast.act_p99_ms:.2f} ms"
    yield (
        f"gradients: {forecast.pushes_per_second:,.1f}/s, {forecast.push_bytes_per_second / 1e6:,.2f} MB/s, each "
        f"{forecast.staleness:,.0f} updates of others behind"
    )
    yield (
        f"a checkpoint: {forecast.checkpoint_mb:,.1f} MB, written in {forecast.checkpoint_seconds:,.1f} s; updates "
        f"wait for {forecast.hold_ms:,.1f} ms of it"
    )
    yield f"first to break: {forecast.bottleneck}"
    for hint in hints:
        yield f"would help: {hint.setting}: {hint.sentence}"
    for source in sources:
        yield f"from: {source}"


def as_json(
    name: str,
    workload: Workload,
    forecast: Forecast,
    size: MachineSize,
    hints: Sequence[Advice],
    sources: Sequence[str],
) -> dict[str, Any]:
    """Return everything, for programs."""
    return {
        "name": name,
        "workload": asdict(workload) | {"connections": workload.connections},
        "machine": asdict(size),
        "enough": forecast.enough,
        **{key: value for key, value in asdict(forecast).items() if key != "connections"},
        "advice": [asdict(hint) for hint in hints],
        "sources": list(sources),
    }
