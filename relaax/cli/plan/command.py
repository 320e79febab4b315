"""The command `relaax plan`."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaax.cli.fitting import Column, FittingTable
from relaax.cli.options import ConfigArgument
from relaax.cli.options import cores as own_cores
from relaax.cli.reporting import console_of, exit_on_errors
from relaax.configuration import ConfigurationError, overrides_of
from relaax.planning.advice import Advice, advice
from relaax.planning.forecast import Forecast, forecast
from relaax.planning.workload import GIGABYTE, MachineSize, Workload
from relaax.server.command.options import SetOption

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan
    from relaax.planning.costs import MessageCost
    from relaax.rlx import Space

EXIT_TOO_SLOW = 3
ENDLESS = 10**9
TABLE_WIDTH = 120
PROBE_SECONDS = 1.5
ROUND_TRIP_MS = 0.2
_LARGEST = 10_000_000


def plan(
    config: ConfigArgument,
    environments: Annotated[int, typer.Option(min=1, max=_LARGEST, help="Number of environments to train.")] = 1000,
    rate: Annotated[
        float | None,
        typer.Option(metavar="STEPS", help="Steps per second of each environment; by default unlimited."),
    ] = None,
    environments_per_connection: Annotated[
        int | None,
        typer.Option(min=1, help="Environments per connection; by default relaax-run.envs_per_client."),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(min=1, help="Predict the speed of this number of machines, which share all parts evenly."),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of a machine; by default of this machine.")] = None,
    memory: Annotated[float | None, typer.Option(help="Gigabytes of a machine; by default of this machine.")] = None,
    network: Annotated[float, typer.Option(help="Network of a machine in Gbit/s, each direction.")] = 1.0,
    round_trip: Annotated[
        float | None,
        typer.Option(
            help=f"Round trip between machines in milliseconds; by default {ROUND_TRIP_MS}, or 0 with --machines 1."
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Result of `relaax bench CONFIG --json FILE` on such a machine."),
    ] = None,
    observation: Annotated[
        str | None,
        typer.Option(
            metavar="SHAPE",
            help="Shape of observations: 84x84 for images of bytes, 4 for numbers. No environment is then started.",
        ),
    ] = None,
    actions: Annotated[int, typer.Option(min=1, help="With --observation: number of actions.")] = 6,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    set_: SetOption = None,
) -> None:
    """Estimate the machines that environments need.

    The model also predicts the first bottleneck, and suggests remedies. The configuration's environments are started
    for a moment, to measure their messages and their time per step. The cost of workers and servers comes from
    --measured, or else from measurements on the project's machine. docs/scaling.md describes the model and its errors.

    Exit code 0: done; 2: the configuration or an option is invalid; 3: the environments would not reach their rate.
    """
    with exit_on_errors("relaax plan", (ValueError,)):  # from the measurement, or for unsupported spaces
        for name, number in {"rate": rate, "memory": memory, "network": network}.items():
            if number is not None and not 0 < number < float("inf"):
                raise ConfigurationError(f"--{name} must be a finite number above 0, not {number:g}")
        if round_trip is not None and not 0 <= round_trip < float("inf"):
            raise ConfigurationError(f"--round-trip must be a finite number of at least 0 ms, not {round_trip:g}")
        result = _measurement(measured)
        from relaax.cli.plan.workload import make_workload
        from relaax.cli.run.plan import make_plan
        from relaax.metrics.system import total_memory
        from relaax.planning.costs import costs_from_measurement, default_costs

        overrides = overrides_of({"run.envs_per_client": environments_per_connection})
        found = make_plan(config, [*(set_ or []), *overrides])
        spaces, client, client_mb = _environment(found, observation, actions, result is not None)
        workload = make_workload(found, spaces, environments, rate)
        if result is not None:
            costs = costs_from_measurement(result, workload, str(measured))
            costs = replace(costs, client_mb=client_mb or costs.client_mb)
        else:
            costs = default_costs(workload, client, client_mb)
        if round_trip is None:
            round_trip = 0.0 if machines == 1 else ROUND_TRIP_MS
        size = MachineSize(
            cores=own_cores() if cores is None else cores,
            gigabytes=round(total_memory() / GIGABYTE, 1) if memory is None else memory,
            gigabits=network,
            round_trip_ms=round_trip,
        )
        bridge = found.configuration.rlx_server.bridge
        expected = forecast(workload, costs, size, machines, bridge)
        hints = advice(workload, costs, size, machines, bridge, expected)
        if as_json:
            result = {
                "name": found.name,
                "workload": asdict(workload) | {"connections": workload.connections},
                "machine": asdict(size),
                "enough": expected.enough,
                **{key: value for key, value in asdict(expected).items() if key != "connections"},
                "advice": [asdict(hint) for hint in hints],
                "sources": list(costs.sources),
            }
            print(json.dumps(result, indent=2))
        else:
            console = console_of(TABLE_WIDTH)
            console.print(table(expected, found.title))
            console.print()
            for sentence in sentences(workload, expected, size, hints, costs.sources):
                console.print(sentence, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if expected.enough or workload.rate is None else EXIT_TOO_SLOW)


def _measurement(path: Path | None) -> dict[str, Any] | None:
    """Return a benchmark's result. Raises ConfigurationError."""
    if path is None:
        return None
    try:
        result = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--measured {path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(result, dict) or "machine" not in result:
        raise ConfigurationError(f"--measured {path} is not a result of `relaax bench --json {path}`")
    return result


def _environment(
    found: Plan, observation: str | None, actions: int, is_measured: bool
) -> tuple[tuple[Space, Space], MessageCost, float]:
    """Return the spaces, and the cost of a message and the megabytes of the environment's program.

    Raises ConfigurationError and StartError.
    """
    from relaax.planning.costs import MessageCost

    if observation is not None:
        if not is_measured:
            raise ConfigurationError(
                "--observation makes no environment, so the time of a step is unknown: add --measured FILE"
            )
        return _spaces(observation, actions), MessageCost(0.0, 0.0), 0.0
    from relaax.cli.plan.probe import probe
    from relaax.planning.costs import COLD, message_cost_from

    n, probed = found.run.envs_per_client, {}
    with tempfile.TemporaryDirectory(prefix="relaax-plan-") as folder:
        for count in (1,) if is_measured else sorted({1, n}):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                command = found.environment_command(address, count, 0)
                probed[count] = probe(command, listener, Path(folder), PROBE_SECONDS)
    most = max(probed)
    one, many = probed[1], probed[most]
    cost = message_cost_from(one.us, many.us, most, COLD, 0.0)
    return (one.observation_space, one.action_space), cost, many.megabytes


def _spaces(observation: str, actions: int) -> tuple[Space, Space]:
    """Return the spaces of --observation and --actions. Raises ConfigurationError."""
    from relaax.rlx import Box, Discrete

    try:
        sizes = [int(word) for word in observation.split("x")]
        if min(sizes) < 1:
            raise ValueError
    except ValueError:
        raise ConfigurationError(f"--observation must be a shape, such as 84x84 or 4, not {observation!r}") from None
    return Box(0, 255, sizes, "uint8" if len(sizes) > 1 else "float32"), Discrete(actions)


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
            "grows"
            if part.grows and part.machines is not None
            else "any number"
            if part.breaks_at > ENDLESS
            else f"{part.breaks_at:,}",
        )
    return result


def sentences(
    workload: Workload, forecast: Forecast, size: MachineSize, hints: Sequence[Advice], sources: Sequence[str]
) -> Iterator[str]:
    """Yield the expected figures, the first bottleneck, remedies, and the sources of the figures."""
    pace = "at full speed" if workload.rate is None else f"{workload.rate:g} steps/s each"
    reached = forecast.steps_per_second
    yield (
        f"{workload.environments:,} environments, {pace}: {reached:,.0f} steps/s"
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
        f"with a staleness of {forecast.staleness:,.0f} updates"
    )
    yield (
        f"a checkpoint: {forecast.checkpoint_mb:,.1f} MB, written in {forecast.checkpoint_seconds:,.1f} s; it "
        f"blocks updates for {forecast.hold_ms:,.1f} ms"
    )
    yield f"first bottleneck: {forecast.bottleneck}"
    for hint in hints:
        yield f"would help: {hint.setting}: {hint.sentence}"
    for source in sources:
        yield f"from: {source}"
