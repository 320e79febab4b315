"""The subcommands of `relaax`. Each is imported only when it is used, because some import slow libraries."""

from __future__ import annotations

import importlib
from typing import Any

import typer
import typer.core
import typer.main

from relaax import __version__
from relaax.server.command.options import VersionOption, command_app

# Name and location of a function, or of a Typer application with its own subcommands. `relaax --help` imports all these
# modules, so they import slow libraries (TensorFlow, gRPC) only when they run.
COMMANDS = {
    "run": "relaax.cli.run.command:run",
    "list": "relaax.cli.listing:list_",
    "check": "relaax.cli.check:check",
    "eval": "relaax.cli.evaluate:evaluate",
    "record": "relaax.cli.demonstrations.record:record",
    "clone": "relaax.cli.demonstrations.clone:clone",
    "replay": "relaax.cli.demonstrations.load:replay",
    "suite": "relaax.cli.suite.command:suite",
    "tune": "relaax.cli.tune.command:tune",
    "top": "relaax.cli.live.top:top",
    "web": "relaax.cli.web.command:web",
    "set": "relaax.cli.live.setting:set_parameters",
    "plot": "relaax.cli.plot:plot",
    "bench": "relaax.cli.bench.command:bench",
    "plan": "relaax.cli.plan.command:plan",
    "cluster": "relaax.cli.cluster.command:cluster",
    "new": "relaax.cli.new.command:new",
    "checkpoints": "relaax.cli.checkpoints.command:checkpoints",
    "doctor": "relaax.cli.doctor.command:doctor",
    "schema": "relaax.cli.schema:schema",
    "keys": "relaax.cli.keys:keys",
    "docs": "relaax.cli.docs:docs",
    "conformance": "relaax.cli.conformance:conformance",
}


class CommandGroup(typer.core.TyperGroup):
    """The commands in COMMANDS, followed by the commands declared in this module."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*COMMANDS, *self.commands]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            self.add_command(_load(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        for name in COMMANDS:  # the names suffice: no command is imported
            if name not in self.commands:
                self.add_command(typer.core.TyperCommand(name), name)
        return super().shell_complete(ctx, incomplete)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS:  # misspelt: Typer suggests only loaded commands
            for name in COMMANDS:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


def _load(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    holder = command_app()
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name)(found)
    return typer.main.get_group(holder).commands[name]


app = command_app(
    cls=CommandGroup,
    add_completion=True,
    no_args_is_help=True,
    help="RELAAX: a reinforcement-learning service for environments that run anywhere.",
)


@app.callback()
def _relaax(version_: VersionOption = False) -> None:
    """Make `app` a group. Without a callback, Typer would run the only command that is declared here."""


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)
