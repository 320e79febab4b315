#!/usr/bin/env python3
"""Run levels of DeepMind Lab against an RLX server: `main HOST:PORT NAME [N]`.

NAME is the name of a level, such as `seekavoid_arena_01`. Frames are 84x84 and gray; an action is repeated for 4
frames. There are eleven actions: 0 and 1 look left and right, 2 and 3 look up and down, 4 and 5 strafe left and right,
6 and 7 move forward and back, 8 fires, 9 jumps, 10 crouches. Several levels run in separate processes.

The package `deepmind_lab` is not a dependency of RELAAX: it is built from source with Bazel.
"""

from __future__ import annotations

import argparse
import importlib.util
from functools import partial
from typing import Any

try:
    from relaax.client import RunSummary, command, run
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit("this Python has no relaax: activate its environment, or pip install 'relaax[gym]'") from None

PROGRAM = "DeepMind_Lab/main"
MISSING = (
    "this Python has no deepmind_lab, which is built from https://github.com/google-deepmind/lab:"
    " bazel build -c opt //python/pip_package:build_pip_package,"
    " then bazel-bin/python/pip_package/build_pip_package FOLDER, then pip install FOLDER/*.whl"
)


def main(arguments: argparse.Namespace) -> RunSummary:
    """Make the levels, run them, close them."""
    settings = command.settings(arguments)
    if importlib.util.find_spec("deepmind_lab") is None:
        raise command.UsageError(MISSING)
    env = make(arguments)
    try:
        summary = run(env, environment=arguments.name, frame_skip=arguments.frame_skip, **settings)
    except BaseException:
        command.abandon(env)
        raise
    env.close()
    return summary


def make(arguments: argparse.Namespace) -> Any:
    """Return the levels as one vector."""
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

    level = command.beside(__package__, "level")
    opener = partial(level.open_lab, arguments.name, arguments.renderer)
    quiet = command.quiet_child()
    makers = [lambda: quiet(level.Level(opener, arguments.frame_skip))] * arguments.environments
    alone = arguments.environments == 1 or command.watching(arguments) is not None
    mode = arguments.vectorization or ("sync" if alone else "async")
    vector: Any = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[mode]
    return vector(makers, autoreset_mode=AutoresetMode.SAME_STEP)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(
        PROGRAM, "Run levels of DeepMind Lab against an RLX server.", "a level, such as seekavoid_arena_01"
    )
    add: Any = result.add_argument
    add("--frame-skip", type=command.positive, default=4, metavar="K", help="frames per step (4)")
    add("--renderer", choices=("software", "hardware"), default="software", help="renderer of the frames (software)")
    add(
        "--vectorization",
        choices=("sync", "async"),
        help="all levels in this process, or one process each (sync for one level or to be watched, otherwise async)",
    )
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
