#!/usr/bin/env python3
"""Run environments of PettingZoo against an RLX server: `main HOST:PORT NAME [N]`.

NAME is an id (`classic/tictactoe_v3`) or a part of it (`tictactoe`), MODULE (`mpe2.simple_spread_v3`) or MODULE:NAME.
One policy plays all agents: each is a row of the connection. With --opponents, it plays one agent, and the others act
at random.
"""

from __future__ import annotations

import argparse
from typing import Any

try:
    from relaax.client import RunSummary, command
    from relaax.client.connection.address import CHECK, LOCAL
    from relaax.client.program import families, modules
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit(
        "this Python has no relaax: activate its environment, or pip install '.[pettingzoo]' in a checkout"
    ) from None

PROGRAM = "PettingZoo/main"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Create the environments, run them and close them."""
    settings = command.settings(arguments)
    families.require("pettingzoo", "pettingzoo", "gymnasium")
    found = command.sibling_module(__package__, "naming").find(arguments.name, arguments.path)
    env = make(found, arguments)
    return families.run_and_close(env, environment=found.name, **settings)


def make(found: Any, arguments: argparse.Namespace) -> Any:
    """Return the copies of the environment as one vector. Raises command.UsageError."""
    naming, games = (command.sibling_module(__package__, name) for name in ("naming", "games"))
    kwargs, render = dict(arguments.kwarg), command.watching(arguments) is not None
    envs = [naming.make(found, kwargs, render) for _ in range(arguments.environments)]
    opponents = arguments.opponents
    if opponents is None and arguments.play is None and needs_opponents(arguments.address, envs[0]):
        opponents = "random"
    play = arguments.play or (games.ALL if opponents is None else games.ALTERNATE)
    if opponents is None and play != games.ALL:
        raise command.UsageError(f"--play {play} needs --opponents random, which plays the other agents")
    if opponents is not None and play == games.ALL:
        raise command.UsageError("--play all leaves no agent for --opponents: omit one of them")
    return games.ZooGames(envs, found.name, play, arguments.metric or ())


def needs_opponents(address: str, env: Any) -> bool:
    """Return whether random agents play with the policy if neither --opponents nor --play is given.

    In a game of turns, a policy that plays against itself cannot be scored. A check needs environments in step.
    """
    copies = command.sibling_module(__package__, "copies")
    return address == CHECK or (address == LOCAL and not copies.is_parallel(env))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(
        PROGRAM,
        "Run environments of PettingZoo against an RLX server.",
        "an id or a part of it, such as tictactoe, MODULE or MODULE:NAME",
    )
    add: Any = result.add_argument
    add("--opponents", choices=("random",), help="let the agents that the policy does not play act at random")
    text = (
        "the agents that the policy plays: all, first, second, alternate (another one in each episode), an agent or a"
        " kind of agents (all; with --opponents, alternate)"
    )
    add("--play", metavar="AGENT", help=text)
    text = "an argument of the environment's constructor, such as max_cycles=100; repeatable"
    add("--kwarg", metavar="NAME=VALUE", type=modules.kwarg, action="append", default=[], help=text)
    text = "folder to search for MODULE, before the working directory; repeatable"
    add("--path", metavar="FOLDER", action="append", default=[], help=text)
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
