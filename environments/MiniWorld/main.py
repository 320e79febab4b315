#!/usr/bin/env python3
"""Run worlds of MiniWorld against an RLX server: `main HOST:PORT NAME [N]`.

NAME is an id of the package (`MiniWorld-MazeS3Fast-v0`) or a part of it (`MazeS3Fast`, `four_rooms`). Frames are 84x84,
in colour. No display is needed.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

try:
    from relaax.client import RunSummary, command
    from relaax.client.program import families
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit(
        "this Python has no relaax: activate its environment, or pip install '.[miniworld]' in a checkout"
    ) from None

PROGRAM = "MiniWorld/main"
PREFIX = "MiniWorld-"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Create the worlds, run them and close them."""
    settings = command.settings(arguments)
    families.require("miniworld", "miniworld", "gymnasium")
    identifier = find(arguments.name)
    env = make(identifier, arguments)
    return families.run_and_close(env, environment=identifier, **settings)


def find(name: str) -> str:
    """Return the id for a name or a part of one. Raises command.UsageError if there is no such id."""
    import gymnasium

    command.sibling_module(__package__, "world").register()
    return families.find_id(name, gymnasium.registry, PREFIX, "MiniWorld")


def make(identifier: str, arguments: argparse.Namespace) -> Any:
    """Return the worlds as one vector."""
    watched = command.watching(arguments) is not None
    one = partial(command.sibling_module(__package__, "world").DrawnWorld, identifier, arguments.side, watched)
    return families.vector(one, arguments.environments, "sync")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(
        PROGRAM, "Run worlds of MiniWorld against an RLX server.", "an id or a part of it, such as MazeS3Fast"
    )
    families.add_side(result)
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
