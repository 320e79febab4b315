#!/usr/bin/env python3
"""Run levels of DeepMind Lab against an RLX server: `main ADDRESS [N|display] [MAP]`.

MAP is the name of a level, `nav_maze_static_01` if none is given. Frames are 84x84 and gray; an action is repeated for
4 frames. There are six actions: 0 and 1 look left and right, 2 and 3 strafe left and right, 4 and 5 move forward and
back. With --no-shrink there are eleven: 0 and 1 look left and right, 2 and 3 look up and down, 4 and 5 strafe left and
right, 6 and 7 move forward and back, 8 fires, 9 jumps, 10 crouches. Several levels run in separate processes.

The package `deepmind_lab` is not a dependency of RELAAX: it is built from source with Bazel.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from functools import partial
from typing import Any

try:
    from relaax.client import RunSummary, command
    from relaax.client.connection.address import DISPLAY
    from relaax.client.program import families
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit(
        "this Python has no relaax: activate its environment, or pip install '.[gym]' in a checkout"
    ) from None

PROGRAM = "DeepMind_Lab/main"
MAP = "nav_maze_static_01"
HELP = f"how many levels (1), or display for one level with --display; and the name of the level ({MAP})"
MISSING = (
    "this Python has no deepmind_lab, which is built from https://github.com/google-deepmind/lab:"
    " bazel build -c opt //python/pip_package:build_pip_package,"
    " then bazel-bin/python/pip_package/build_pip_package FOLDER, then pip install FOLDER/*.whl"
)


def main(arguments: argparse.Namespace) -> RunSummary:
    """Create the levels, run them and close them."""
    settings = command.settings(arguments)
    if importlib.util.find_spec("deepmind_lab") is None:
        raise command.UsageError(MISSING)
    env = make(arguments)
    return families.run_and_close(env, environment=arguments.name, frame_skip=arguments.frame_skip, **settings)


def make(arguments: argparse.Namespace) -> Any:
    """Return the levels as one vector."""
    level = command.sibling_module(__package__, "level")
    opener = partial(level.open_lab, arguments.name, arguments.renderer)
    one = partial(level.Level, opener, arguments.frame_skip, arguments.shrink)
    alone = arguments.environments == 1 or command.watching(arguments) is not None
    mode = arguments.vectorization or ("sync" if alone else "async")
    return families.vector(one, arguments.environments, mode, arguments.metric or ())


class CountAndMap(argparse.Action):
    """Parse at most two words in any order: a number or `display` is the count, another word is MAP."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        words: Sequence[str] = values
        counts = [word for word in words if word.isdecimal() or word == DISPLAY]
        maps = [word for word in words if word not in counts]
        if len(counts) > 1 or len(maps) > 1:
            given = " ".join(words)
            raise argparse.ArgumentError(self, f"give at most one number of levels and one name, not {given!r}")
        for count in counts:
            if count == DISPLAY:
                namespace.display = True
                continue
            try:
                namespace.environments = command.positive(count)
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(self, str(error)) from None
        for name in maps:
            namespace.name = name


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(PROGRAM, "Run levels of DeepMind Lab against an RLX server.", None)
    result.set_defaults(name=MAP, environments=1)
    add: Any = result.add_argument
    add("words", metavar="[N|display] [MAP]", nargs="*", action=CountAndMap, help=HELP)
    text = "use the six actions that move and turn instead of all eleven (on)"
    add("--shrink", action=argparse.BooleanOptionalAction, default=True, help=text)
    families.add_frame_skip(result)
    add("--renderer", choices=("software", "hardware"), default="software", help="renderer of the frames (software)")
    families.add_vectorization(result, "sync for one level or with --display or --video, otherwise async")
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
