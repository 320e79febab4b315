"""The command `relaax replay load`: insert recorded episodes into the replay memory of a training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from relaax.cli import completion
from relaax.cli.demonstrations.clone import description_of, read_episodes
from relaax.cli.live.addresses import rlx_address_of
from relaax.cli.options import NoProgressOption
from relaax.cli.reporting import exit_on_errors, exit_with_error, resilient
from relaax.console import log_to_stderr
from relaax.server.command.options import command_app

COMMAND = "relaax replay load"
SHOWN_EVERY = 1_000

replay = command_app(no_args_is_help=True, help="Work with the replay memory of a training.")


@replay.callback()
def _replay() -> None:
    """Make `replay` a group."""


@replay.command()
def load(
    path: Annotated[Path, typer.Argument(metavar="EPISODES", help="Episodes of `relaax record`: a folder or a file.")],
    where: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.configurations_and_runs,
            metavar="HOST:PORT|CONFIG|RUN",
            help="An RLX server; a configuration that names it; or the directory of an active run.",
        ),
    ],
    no_progress: NoProgressOption = False,
) -> None:
    """Insert recorded episodes into the replay memory of a training.

    A client plays each episode once and chooses all actions, so the environment steps count, and the returns do not.
    With `algorithm.demonstration_priority`, the transitions keep at least this priority.

    Exit code 0: done; 1: the server failed; 2: the request is invalid.
    """
    log_to_stderr(f"{COMMAND}: %(message)s")
    with exit_on_errors(COMMAND):
        address = rlx_address_of(where)
        recorded = read_episodes(path)
        from relaax.client import Failure
        from relaax.demonstrations.player import play_once

        progress = None if no_progress else resilient(sys.stdout)

        def show(steps: int) -> None:
            if progress is not None and steps % SHOWN_EVERY == 0:
                print(f"{steps:,} of {recorded.steps:,} steps", file=progress, flush=True)

        if not no_progress:
            print(description_of(recorded), file=progress, flush=True)
        try:
            whole = play_once(address, recorded, show)
        except Failure as error:
            exit_with_error(COMMAND, error, 1)
        if not whole:
            exit_with_error(COMMAND, f"{address}: the training has ended", 1)
