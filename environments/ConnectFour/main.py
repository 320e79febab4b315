#!/usr/bin/env python3
"""Play Connect Four against an RLX server: `main HOST:PORT NAME [N]`.

NAME is for logs. It needs only relaax.client and numpy. N games share one connection, and their other side another one.
"""

from __future__ import annotations

import argparse
from typing import Any

try:
    from relaax.client import RunSummary, command, run
    from relaax.client.connection.address import SERVERLESS
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit("this Python has no relaax: activate its environment, or pip install . in a checkout") from None

PROGRAM = "ConnectFour/main"
SELF = "self"
_OF_BOTH = ("retry_seconds", "codec", "tls", "tls_ca", "token")


def main(arguments: argparse.Namespace) -> RunSummary:
    """Set up the boards, and let the server's agents play until training ends."""
    settings = command.settings(arguments)
    games = command.sibling_module(__package__, "games")
    alone = arguments.address in SERVERLESS
    opponent = arguments.opponent or ("random" if alone or arguments.exploit else SELF)
    count, seed = arguments.environments, arguments.seed
    if opponent != SELF:
        rival = games.ScriptedRival(opponent, seed)
    elif alone or arguments.exploit:
        raise command.UsageError(f"--opponent {SELF} needs a server and training: choose random or blocks")
    else:
        both = {key: settings[key] for key in _OF_BOTH}
        rival = games.OlderSelf(arguments.address, count, environment=arguments.name, **both)
    vector = games.ConnectFourGames(count, rival, seed)
    try:
        return run(vector, environment=arguments.name, **settings)
    finally:
        vector.close()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(PROGRAM, "Play Connect Four against an RLX server.", "a name for logs")
    add: Any = result.add_argument
    text = (
        "who plays the other side: self, a connection in exploit mode, which acts with older checkpoints if the"
        " configuration of the server has opponents; random; or blocks, which wins at once or blocks, if it can (self;"
        " random without training)"
    )
    add("--opponent", choices=(SELF, "random", "blocks"), help=text)
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
