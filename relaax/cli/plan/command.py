"""The command `relaax plan`."""

from __future__ import annotations

import json
import socket
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from relaax.cli import completion
from relaax.configuration import ConfigurationError, overrides_of
from relaax.console import print_error
from relaax.server.command.options import SetOption

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan
    from relaax.planning.costs import Costs, MessageCost
    from relaax.planning.workload import MachineSize, Workload
    from relaax.rlx import Space

DONE, REFUSED, TOO_LITTLE = 0, 2, 3
TABLE_WIDTH = 120
PROBE_SECONDS = 1.5
ROUND_TRIP_MS = 0.2
_LARGEST = 10_000_000


def plan(
    config: Annotated[
        str, typer.Argument(autocompletion=completion.configurations, help="A YAML file, or the name of a bundled one.")
    ],
    environments: Annotated[int, typer.Option(min=1, max=_LARGEST, help="Environments that are to train.")] = 1000,
    rate: Annotated[
        float | None,
        typer.Option(metavar="STEPS", help="Steps per second of each environment; by default as fast as they go."),
    ] = None,
    environments_per_connection: Annotated[
        int | None,
        typer.Option(min=1, help="Environments of a connection; by default relaax-run.envs_per_client."),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(min=1, help="Machines there are, each with its share of everything: what they do, not how many."),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of a machine; by default this one's.")] = None,
    memory: Annotated[float | None, typer.Option(help="Gigabytes of a machine; by default this one's.")] = None,
    network: Annotated[float, typer.Option(help="Gbit/s of a machine's network, each way.")] = 1.0,
    round_trip: Annotated[
        float | None,
        typer.Option(
            help=f"Milliseconds to another machine and back; by default {ROUND_TRIP_MS}, 0 with --machines 1."
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `relaax bench CONFIG --json FILE` measured on such a machine."),
    ] = None,
    observation: Annotated[
        str | None,
        typer.Option(metavar="SHAPE", help="Make no environment: 84x84 for images of bytes, 4 for numbers."),
    ] = None,
    actions: Annotated[int, typer.Option(min=1, help="With --observation: how many actions there are.")] = 6,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    set_: SetOption = None,
) -> None:
    """Estimate the machines that environments need.

    A model tells what breaks first, too, and what would help. The configuration's environments are made for a moment,
    which says what they send and how long they take. What workers and servers cost comes from --measured, or else from
    figures of the project's own machine. docs/scaling.md has the model, and how far it is from what was measured.

    Exit code 0: done; 2: the configuration or an option cannot be used; 3: the environments would not get their rate.
    """
    from relaax.supervision.process import StartError

    try:
        _check(rate=rate, memory=memory, network=network)
        if round_trip is not None and not 0 <= round_trip < float("inf"):
            raise ConfigurationError(f"--round-trip {round_trip:g}: a number of milliseconds is needed, 0 or more")
        result = _measurement(measured)
        found = _plan_of(config, set_, environments_per_connection)
        spaces, client, client_mb = _environment(found, observation, actions, result is not None)
        from relaax.cli.plan.described import described
        from relaax.planning.costs import defaults
        from relaax.planning.costs import measured as costs_of

        workload = described(found, spaces, environments, rate)
        if result is not None:
            costs = costs_of(result, workload, str(measured))
            costs = replace(costs, client_mb=client_mb or costs.client_mb)
        else:
            costs = defaults(workload, client, client_mb)
        size = _size(cores, memory, network, round_trip, machines)
        code = _show(found, workload, costs, size, machines, as_json)
    except ConfigurationError as error:
        _give_up(str(error), REFUSED)
    except ValueError as error:  # of the measurement, or spaces that an algorithm does not take
        _give_up(str(error), REFUSED)
    except StartError as error:
        _give_up(error.refused or str(error), REFUSED if error.refused else 1)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(code)


def _check(**numbers: float | None) -> None:
    """Raise ConfigurationError for an option that is no number above 0."""
    for name, number in numbers.items():
        if number is not None and not 0 < number < float("inf"):
            raise ConfigurationError(f"--{name} {number:g}: a number above 0 is needed")


def _plan_of(config: str, set_: list[str] | None, per_connection: int | None) -> Plan:
    from relaax.cli.run.plan import make_plan

    given = {"run.envs_per_client": per_connection}
    return make_plan(config, [*(set_ or []), *overrides_of(given)])


def _measurement(path: Path | None) -> dict[str, Any] | None:
    """Return a benchmark's result. Raises ConfigurationError."""
    if path is None:
        return None
    try:
        result = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--measured {path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(result, dict) or "machine" not in result:
        raise ConfigurationError(f"--measured {path}: is not what `relaax bench --json {path}` writes")
    return result


def _environment(
    found: Plan, observation: str | None, actions: int, is_measured: bool
) -> tuple[tuple[Space, Space], MessageCost, float]:
    """Return the spaces, what the environment's program costs, and its megabytes.

    Raises ConfigurationError and StartError.
    """
    from relaax.planning.costs import MessageCost

    if observation is not None:
        if not is_measured:
            raise ConfigurationError(
                "--observation makes no environment, so nothing says how long one takes: give --measured FILE, too"
            )
        return _spaces(observation, actions), MessageCost(0.0, 0.0), 0.0
    from relaax.cli.plan.probe import probe
    from relaax.planning.costs import COLD, line_through

    n, probed = found.run.envs_per_client, {}
    with tempfile.TemporaryDirectory(prefix="relaax-plan-") as folder:
        for count in (1,) if is_measured else sorted({1, n}):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                address = f"127.0.0.1:{listener.getsockname()[1]}"
                command = found.environment_command(address, count, 0)
                probed[count] = probe(command, listener, Path(folder), PROBE_SECONDS)
    most = max(probed)
    one, many = probed[1], probed[most]
    cost = line_through(one.us, many.us, most, COLD, 0.0)
    return (one.observation_space, one.action_space), cost, many.megabytes


def _spaces(observation: str, actions: int) -> tuple[Space, Space]:
    """Return those of --observation and --actions. Raises ConfigurationError."""
    from relaax.rlx import Box, Discrete

    try:
        sizes = [int(word) for word in observation.split("x")]
        if min(sizes) < 1:
            raise ValueError
    except ValueError:
        raise ConfigurationError(f"--observation {observation}: a shape is needed, such as 84x84 or 4") from None
    return Box(0, 255, sizes, "uint8" if len(sizes) > 1 else "float32"), Discrete(actions)


def _size(
    cores: int | None, memory: float | None, network: float, round_trip: float | None, machines: int | None
) -> MachineSize:
    from relaax.cli.bench.emulator import cores as own_cores
    from relaax.metrics.system import total_memory
    from relaax.planning.workload import GIGABYTE, MachineSize

    if round_trip is None:
        round_trip = 0.0 if machines == 1 else ROUND_TRIP_MS
    return MachineSize(
        cores=own_cores() if cores is None else cores,
        gigabytes=round(total_memory() / GIGABYTE, 1) if memory is None else memory,
        gigabits=network,
        round_trip_ms=round_trip,
    )


def _show(found: Plan, workload: Workload, costs: Costs, size: MachineSize, machines: int | None, is_json: bool) -> int:
    """Print the plan; return the exit code."""
    from relaax.cli.plan.table import as_json, sentences, table
    from relaax.plain_console import PlainConsole
    from relaax.planning.advice import advice
    from relaax.planning.forecast import forecast

    bridge = found.configuration.rlx_server.bridge
    expected = forecast(workload, costs, size, machines, bridge)
    hints = advice(workload, costs, size, machines, bridge, expected)
    if is_json:
        print(json.dumps(as_json(found.name, workload, expected, size, hints, costs.sources), indent=2))
    else:
        console = PlainConsole()
        if not console.is_terminal:
            console.width = TABLE_WIDTH
        console.print(table(expected, found.title))
        console.print()
        for sentence in sentences(workload, expected, size, hints, costs.sources):
            console.print(sentence, highlight=False, soft_wrap=True)
    return DONE if expected.enough or workload.rate is None else TOO_LITTLE


def _give_up(sentence: str, code: int) -> NoReturn:
    print_error("relaax plan", sentence)
    raise typer.Exit(code) from None
