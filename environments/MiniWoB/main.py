#!/usr/bin/env python3
"""Run tasks of MiniWoB++ in Chromium against an RLX server: `main HOST:PORT NAME [N]`.

NAME is an id (`miniwob/click-test-v1`) or a part of it (`click-test`). N browsers without windows run at once. An
observation is the page at half its size, in colour, 80 wide and 105 high, including the sentence with the task. An
action is a click at one of 8 x 8 places below that sentence. The reward is the task's: 1 for success, -1 for failure.
An episode without success in 10 clicks is a failure.
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
        "this Python has no relaax: activate its environment, or pip install '.[miniwob]' in a checkout"
    ) from None

PROGRAM = "MiniWoB/main"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Open the browsers, run the tasks and close the browsers."""
    settings = command.settings(arguments)
    families.require("miniwob", "miniwob", "selenium", "gymnasium", "cv2")
    identifier, env = make(arguments)
    return families.run_and_close(env, environment=identifier, **settings)


def make(arguments: argparse.Namespace) -> tuple[str, Any]:
    """Return the task's id and the vector. Raises command.UsageError if there is no such task or no browser."""
    tasks, browser = (command.sibling_module(__package__, name) for name in ("tasks", "browser"))
    identifier, page = tasks.find(arguments.name)
    browser.binaries()
    opener = partial(browser.Browser, page.as_uri(), tasks.WIDTH, tasks.HEIGHT, tasks.SCALE)
    return identifier, tasks.Tasks(opener, arguments.environments, arguments.grid, arguments.clicks)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(
        PROGRAM, "Run tasks of MiniWoB++ in Chromium against an RLX server.", "a task, such as click-test"
    )
    add: Any = result.add_argument
    add("--grid", type=command.positive, default=8, metavar="K", help="click at one of K x K places (8)")
    add("--clicks", type=command.positive, default=10, metavar="K", help="maximum clicks per episode (10)")
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
