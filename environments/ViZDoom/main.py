#!/usr/bin/env python3
"""Run scenarios of ViZDoom against an RLX server: `main HOST:PORT NAME [N]`.

NAME is an id of the package (`VizdoomMyWayHome-v1`) or a part of it (`VizdoomMyWayHome`, `my_way_home`). Frames are
gray and 84x84; an action is held for 4 frames. The engine of each game is a separate process.
"""

from __future__ import annotations

import argparse
from typing import Any

try:
    from relaax.client import RunSummary, command
    from relaax.client.program import families
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit(
        "this Python has no relaax: activate its environment, or pip install '.[vizdoom]' in a checkout"
    ) from None

PROGRAM = "ViZDoom/main"
PREFIX = "Vizdoom"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Create the games, run them and close them."""
    settings = command.settings(arguments)
    families.require("vizdoom", "vizdoom", "gymnasium", "cv2")
    identifier = find(arguments.name)
    env = make(identifier, arguments)
    return families.run_and_close(env, environment=identifier, frame_skip=arguments.frame_skip, **settings)


def find(name: str) -> str:
    """Return the id for a name or a part of one. Raises command.UsageError if there is no such id."""
    import gymnasium
    from vizdoom import gymnasium_wrapper  # registers the ids

    assert gymnasium_wrapper
    return families.find_id(name, gymnasium.registry, PREFIX, "ViZDoom")


def make(identifier: str, arguments: argparse.Namespace) -> Any:
    """Return the games as one vector."""
    import cv2
    import gymnasium

    screen = command.sibling_module(__package__, "screen")
    cv2.setNumThreads(1)  # the images are small, and other processes need the cores
    options: dict[str, Any] = {"render_mode": "rgb_array"} if command.watching(arguments) is not None else {}
    colors = "RGB24" if options else "GRAY8"
    spec = gymnasium.spec(identifier)  # a child process may not have the id registered

    def one() -> gymnasium.Env:
        game = gymnasium.make(
            spec,
            disable_env_checker=True,  # it would reject observations that `Screen` removes
            frame_skip=arguments.frame_skip,
            screen_resolution="RES_160X120",  # the smallest: most of the time of a step is drawing
            screen_format=colors,
            **options,
        )
        return screen.Screen(game, arguments.side)

    return families.vector(one, arguments.environments, arguments.vectorization or "sync", arguments.metric or ())


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(
        PROGRAM, "Run scenarios of ViZDoom against an RLX server.", "an id or a part of it, such as my_way_home"
    )
    families.add_frame_skip(result)
    families.add_side(result)
    families.add_vectorization(result, "sync")
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
