"""Options shared by several subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

ClientsOption = Annotated[int | None, typer.Option(help="Environment processes.")]
EnvironmentsOption = Annotated[
    int | None, typer.Option(help="Environments that each connection of a client steps together.")
]
ConnectionsOption = Annotated[int | None, typer.Option(help="Connections per client, in threads of one process.")]
SeedOption = Annotated[int | None, typer.Option(help="Seed of parameters, agents and environments.")]
