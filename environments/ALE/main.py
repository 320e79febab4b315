#!/usr/bin/env python3
"""Run games of the Arcade Learning Environment against an RLX server: `main HOST:PORT NAME [N]`.

NAME is the name of a rom (`boxing`) or an id (`ALE/Boxing-v5`, `BoxingNoFrameskip-v4`). N games are stepped together
over one connection, in threads of this process. The preprocessing is the usual one: grayscale 84x84, frame skip 4 with
the maximum over the last two frames, up to 30 no-op starts, the game's own actions. Rewards are the raw score.
"""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any

try:
    from relaax.client import RunSummary, command, run
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit("this Python has no relaax: activate its environment, or pip install 'relaax[atari]'") from None

PROGRAM = "ALE/main"
STICKY_IDS = 0.25  # for ids with -v0 or -v5


def main(arguments: argparse.Namespace) -> RunSummary:
    """Make the games, run them, close them."""
    settings = command.settings(arguments)
    env = make(arguments)
    try:
        return run(
            env,
            environment=arguments.name,
            frame_skip=arguments.frame_skip,
            whole_episodes=command.beside(__package__, "games").whole_games if arguments.life_loss else None,
            **settings,
        )
    finally:
        env.close()


def make(arguments: argparse.Namespace) -> Any:
    """Return the games as one vector. Raises command.UsageError if there is no such game."""
    rom, sticky = find(arguments.name)
    if arguments.protocol == command.NOOP:
        arguments.life_loss, sticky = False, 0.0
        arguments.noop_max, arguments.max_frames = command.NOOP_MAX, command.NOOP_FRAMES
    return command.beside(__package__, "games").Games(
        rom,
        arguments.environments,
        life_loss=arguments.life_loss,
        sticky=sticky if arguments.sticky is None else arguments.sticky,
        noop_max=arguments.noop_max,
        frame_skip=arguments.frame_skip,
        full_action_space=arguments.full_action_space,
        max_frames=arguments.max_frames,
        threads=arguments.threads,
        fire_reset=arguments.protocol is None,
        render=command.watching(arguments) is not None,
    )


def find(name: str) -> tuple[str, float]:
    """Return the rom's name and the id's sticky probability. Raises command.UsageError if there is no such rom."""
    try:
        from ale_py import roms
    except ImportError:
        raise command.UsageError("ale-py is not installed; pip install 'relaax[atari]'") from None

    match = re.fullmatch(r"(?:ALE/)?(\w+?)(?:NoFrameskip|Deterministic)?(?:-v(\d+))?", name)
    wanted = match[1] if match else name
    by_letters: dict[str, str] = {rom.replace("_", ""): rom for rom in roms.get_all_rom_ids()}
    rom = by_letters.get(wanted.replace("_", "").lower())
    if rom is None:
        near = difflib.get_close_matches(wanted.lower(), by_letters.values(), n=1, cutoff=0.5)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        raise command.UsageError(f"the Arcade Learning Environment has no game {name!r}{hint}")
    return rom, STICKY_IDS if match and match[2] in ("0", "5") else 0.0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(PROGRAM, "Run Atari games against an RLX server.", "a rom or an id, such as boxing")
    add: Any = result.add_argument
    add("--life-loss", action="store_true", help="end an episode with each life; returns are still of whole games")
    add(
        "--sticky",
        type=command.probability,
        metavar="P",
        help="repeat the last action with probability P (0; 0.25 for -v0, -v5)",
    )
    add("--noop-max", type=int, default=30, metavar="K", help="begin with up to K no-ops (30)")
    add("--frame-skip", type=command.positive, default=4, metavar="K", help="frames per step (4)")
    add("--full-action-space", action="store_true", help="use all 18 actions instead of the game's own")
    add(
        "--max-frames",
        type=command.positive,
        default=108_000,
        metavar="K",
        help="truncate games after K frames (108000)",
    )
    add("--threads", type=int, default=0, metavar="K", help="emulator threads (0: one per core or game)")
    command.add_atari_protocol(result)
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
