"""Options shared by several subcommands, and the number of cores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from relaax.cli import completion

ConfigArgument = Annotated[
    str, typer.Argument(autocompletion=completion.configurations, help="A YAML file, or the name of a bundled one.")
]
ClientsOption = Annotated[int | None, typer.Option(help="Environment processes.")]
EnvironmentsOption = Annotated[
    int | None, typer.Option(help="Environments that each connection of a client steps together.")
]
ConnectionsOption = Annotated[int | None, typer.Option(help="Connections per client, in threads of one process.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of parameters, agents and environments.")]
OverridesOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in `relaax run`.")
]
EndpointOption = Annotated[str | None, typer.Option(metavar="URL", help="URL of an S3 other than Amazon's.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Start a new run; a previous run is moved aside.")]
ReplayServersOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT[,...]", help="Replay servers, with HOST:PORT; RELAAX_REPLAY_SERVER_TOKEN has their token."
    ),
]
TokenFileOption = Annotated[
    Path | None, typer.Option(help="File with the parameter server's token; by default RELAAX_PARAMETER_SERVER_TOKEN.")
]
AuthorityOption = Annotated[
    Path | None, typer.Option(help="File with the authority (PEM) of the servers' certificates; enables TLS.")
]
NoProgressOption = Annotated[bool, typer.Option("--no-progress", help="Do not show progress.")]


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
