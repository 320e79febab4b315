#!/usr/bin/env python3
"""Run a game of Godot without a window against an RLX server: `main HOST:PORT GAME [N]`.

GAME is `collector`, the example of protocol/clients/godot, or the folder of a project that uses its addon. The game
has N agents.
"""

from __future__ import annotations

import argparse

try:
    from relaax.client import RunSummary, command, run
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit("this Python has no relaax: activate its environment, or pip install . in a checkout") from None

PROGRAM = "Godot/main"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Start the game, let the server's agents act in it until training ends, and end it."""
    settings = command.settings(arguments)
    if arguments.display or arguments.video is not None:
        raise command.UsageError("this game has no window: start Godot itself with --path FOLDER")
    if arguments.connections > 1:
        raise command.UsageError("a game has one connection: use more agents, or relaax-run.clients for more games")
    games = command.sibling_module(__package__, "game")
    folder = games.project(arguments.name)
    game = games.GodotGame(folder, games.godot_for(folder), arguments.environments, arguments.seed)
    try:
        return run(game, environment=arguments.name, **settings, frame_skip=game.frame_skip)
    finally:
        game.close()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    described = "Run a game of Godot without a window against an RLX server."
    return command.parser(PROGRAM, described, "collector, or the folder of a project of Godot")


if __name__ == "__main__":
    command.execute(parser(), main)
