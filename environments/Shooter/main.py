#!/usr/bin/env python3
"""Run a shooting range against an RLX server: `main HOST:PORT NAME [N]`.

Its actions are mixed. NAME is for logs. It needs only relaax.client and numpy. N arenas share one connection.
"""

from __future__ import annotations

import argparse

try:
    from relaax.client import RunSummary, command, run
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit("this Python has no relaax: activate its environment, or pip install . in a checkout") from None

PROGRAM = "Shooter/main"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Make the arenas, and let the server's agents act in them until training ends."""
    settings = command.settings(arguments)
    arenas = command.sibling_module(__package__, "arena").Arenas(arguments.environments, arguments.seed)
    return run(arenas, environment=arguments.name, **settings)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    return command.parser(PROGRAM, "Run a shooting range against an RLX server.", "a name for logs")


if __name__ == "__main__":
    command.execute(parser(), main)
