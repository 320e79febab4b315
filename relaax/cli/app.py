"""The subcommands of `relaax`."""

from __future__ import annotations

import typer

from relaax import __version__
from relaax.cli.new.command import new
from relaax.cli.plot import plot
from relaax.cli.run.command import run

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="RELAAX: a reinforcement-learning service for environments that live anywhere.",
)
app.command()(run)
app.command()(plot)
app.add_typer(new, name="new")


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)
