"""The command `relaax bench`."""

from __future__ import annotations

import json
import math
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relaax.cli.options import ClientsOption, ConfigArgument, ConnectionsOption, EnvironmentsOption, SeedOption
from relaax.cli.reporting import check_writable, console_of, exit_on_errors, exit_with_error
from relaax.configuration import ConfigurationError, overrides_of, redacted
from relaax.console import log_to_stderr

if TYPE_CHECKING:
    from relaax.cli.run.plan import Plan

DEFAULT = "da3c_ale_boxing"
# Training must not end while it is measured. The learning rate decays more slowly, which does not affect speed.
ENDLESS = 10**15
TABLE_WIDTH = 110


def bench(
    config: ConfigArgument = DEFAULT,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement: environments alone, training.")] = 30.0,
    clients: ClientsOption = None,
    envs_per_client: EnvironmentsOption = None,
    connections_per_client: ConnectionsOption = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures, windows and facts to this file.")
    ] = None,
    updates: Annotated[int, typer.Option(min=1, help="Updates of each worker before its memory is measured.")] = 1000,
    seed: SeedOption = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in algorithm.entropy_beta=0.02."),
    ] = None,
) -> None:
    """Measure how fast an experiment is on this machine.

    It measures and explains: the speed of the environments alone, of the environments with the network, and of
    training, in alternating windows; the latency of an action; a worker's exchange with the parameter server, and with
    replay servers if the algorithm has a replay memory; memory and start of a worker. The machine should be otherwise
    idle.

    With the default --seconds it takes seven minutes for Atari on two cores, and three for CartPole: four times
    --seconds, the time until the workers have made their updates, and a minute for the rest.

    Exit code 0: done; 1: failed; 2: the configuration cannot be used; 130: interrupted.
    """
    log_to_stderr("relaax bench: %(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given = {
        "run.clients": clients,
        "run.envs_per_client": envs_per_client,
        "run.connections_per_client": connections_per_client,
        "algorithm.seed": seed,
        "algorithm.max_global_step": ENDLESS,
    }
    with exit_on_errors("relaax bench"):
        from relaax.cli.run.plan import make_plan

        if not 0 < seconds < math.inf:
            raise ConfigurationError(f"--seconds must be a finite number above 0, such as 30, not {seconds:g}")
        plan = make_plan(config, [*(set_ or []), *overrides_of(given)])
        if json_file is not None:
            check_writable("--json", json_file)
        result = _measure(plan, seconds, updates)
        if json_file is not None:
            try:
                json_file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
            except OSError as error:
                exit_with_error("relaax bench", f"--json {json_file}: {error.strerror}", 1)


def _measure(plan: Plan, seconds: float, updates: int) -> dict[str, Any]:
    """Show and return all figures. Raises StartError."""
    from relaax.cli.bench import results
    from relaax.cli.bench.benchmark import Benchmark
    from relaax.cli.bench.programs import pluralize
    from relaax.plain_console import PlainConsole

    begun = time.monotonic()
    console = PlainConsole(stderr=True)
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": redacted(["relaax", *sys.argv[1:]]),
        "configuration": redacted(plan.configuration.as_dict()),
        "name": plan.name,
        "seed": plan.seed,
        "clients": plan.run.clients,
        "envs_per_client": plan.run.envs_per_client,
        "connections_per_client": plan.run.connections_per_client,
        "seconds": seconds,
    }

    def report(sentence: str) -> None:
        console.print(f"{time.monotonic() - begun:4.0f} s  {sentence}", highlight=False, soft_wrap=True)

    with (
        tempfile.TemporaryDirectory(prefix="relaax-bench-", ignore_cleanup_errors=True) as folder,
        console.status("") as status,
    ):
        benchmark = Benchmark(plan, Path(folder), seconds, updates, report, lambda what: status.update(f"{what} ..."))
        result = facts | benchmark.run() | {"took_seconds": round(time.monotonic() - begun, 1)}
    clients = pluralize(plan.run.clients, "client", "clients")
    if plan.run.connections_per_client > 1:
        clients += f" of {plan.run.connections_per_client} connections"
    shape = f"{clients} of {pluralize(plan.run.envs_per_client, 'environment', 'environments')}"
    console_of(TABLE_WIDTH).print(
        results.table(result, f"{plan.name}, {shape}, {pluralize(result['machine']['cores'], 'core', 'cores')}")
    )
    for warning in result["warnings"]:
        print(f"warning: {warning}")
    return result
