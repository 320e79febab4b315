#!/usr/bin/env python3
"""Run Atari games (ALE) against an RLX server: `main HOST:PORT NAME [N]`.

The games are those of the Arcade Learning Environment. NAME is the name of a rom (`boxing`) or an id (`ALE/Boxing-v5`,
`BoxingNoFrameskip-v4`). N games are stepped together over one connection, in threads of this process.
The preprocessing is the usual one: grayscale 84x84, frame skip 4 with the maximum over the last two frames, up to 30
no-op starts, the game's own actions. Rewards are the raw score.

Roms come from the folder of --roms. The default is the folder that the variable RELAAX_ROMS names, if it exists,
otherwise the package ale-py.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

try:
    from relaax.client import RunSummary, command
    from relaax.client.program import families
except ModuleNotFoundError as error:
    if error.name != "relaax":
        raise
    raise SystemExit(
        "this Python has no relaax: activate its environment, or pip install '.[atari]' in a checkout"
    ) from None

PROGRAM = "ALE/main"
STICKY_IDS = 0.25  # for ids with -v0 or -v5
SEVERAL_PLAYERS = ("combat", "joust", "maze_craze", "warlords")  # the emulator ends the process for these roms
ROMS_VARIABLE = "RELAAX_ROMS"
_ROMS_OF_ALE = "ALE_ROMS_DIR"


def main(arguments: argparse.Namespace) -> RunSummary:
    """Create the games, run them and close them."""
    settings = command.settings(arguments)
    env = make(arguments)
    return families.run_and_close(
        env,
        environment=arguments.name,
        frame_skip=arguments.frame_skip,
        whole_episodes=command.sibling_module(__package__, "games").whole_games if arguments.life_loss else None,
        **settings,
    )


def make(arguments: argparse.Namespace) -> Any:
    """Return the games as one vector. Raises command.UsageError if there is no such game."""
    rom, sticky = find(arguments.name, arguments.roms)
    if arguments.protocol == command.NOOP:
        arguments.life_loss, sticky = False, 0.0
        arguments.noop_max, arguments.max_frames = command.NOOP_MAX, command.NOOP_FRAMES
    games = command.sibling_module(__package__, "games")
    with _quiet():
        return games.Games(
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


def find(name: str, folder: Path | None = None) -> tuple[str, float]:
    """Return the rom's name and the id's sticky probability. Raises command.UsageError if there is no such rom.

    `folder`: a folder with roms, or None for ale-py's own.
    """
    try:
        from ale_py import roms
    except ImportError:
        raise command.UsageError("ale-py is not installed; pip install 'relaax[atari]'") from None

    match = re.fullmatch(r"(?:ALE/)?(\w+?)(?:NoFrameskip|Deterministic)?(?:-v(\d+))?", name)
    wanted = match[1] if match else name
    by_letters: dict[str, str] = {rom.replace("_", ""): rom for rom in roms.get_all_rom_ids()}
    rom = by_letters.get(wanted.replace("_", "").lower())
    if rom is None:
        hint = families.nearest(wanted.lower(), by_letters.values())
        raise command.UsageError(f"the Arcade Learning Environment has no game {name!r}{hint}")
    if rom in SEVERAL_PLAYERS:
        raise command.UsageError(f"{rom} is for several players; the emulator supports only games for one player")
    use_roms(rom, folder)
    return rom, STICKY_IDS if match and match[2] in ("0", "5") else 0.0


def use_roms(rom: str, folder: Path | None) -> None:
    """Make ale-py load roms from `folder`, if given. Raises command.UsageError if the rom is missing or a wrong one."""
    from ale_py import roms

    if folder is not None:
        if not folder.is_dir():
            raise command.UsageError(f"there is no folder {folder} for --roms; without --roms, ale-py's own are used")
        os.environ[_ROMS_OF_ALE] = str(folder)
    source = folder or "ale-py"
    try:
        with _quiet():
            roms.get_rom_path(rom)
    except FileNotFoundError:
        raise command.UsageError(
            f"{source} has no {rom}.bin: put it there, or name a folder that has it with --roms"
        ) from None
    except OSError as error:  # its checksum is not that of the rom with this name
        raise command.UsageError(
            f"{source}: {' '.join(str(error).split())}: replace it by the rom that ale-py expects"
        ) from None


def _quiet() -> contextlib.AbstractContextManager[Any]:
    """Suppress ale-py's output about where it looks for roms."""
    return contextlib.redirect_stdout(io.StringIO())


def _folder() -> Path | None:
    """Return the folder of the variable RELAAX_ROMS if it exists.

    A container image sets the variable, even if no folder is mounted there.
    """
    folder = Path(os.environ.get(ROMS_VARIABLE, ""))
    return folder if os.environ.get(ROMS_VARIABLE) and folder.is_dir() else None


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = command.parser(PROGRAM, "Run Atari games against an RLX server.", "a rom or an id, such as boxing")
    add: Any = result.add_argument
    add(
        "--life-loss", action="store_true", help="end an episode with each life; returns are still those of whole games"
    )
    text = "repeat the last action with probability P (0; 0.25 for -v0, -v5)"
    add("--sticky", type=command.probability, metavar="P", help=text)
    add("--noop-max", type=int, default=30, metavar="K", help="begin with up to K no-ops (30)")
    families.add_frame_skip(result)
    add("--full-action-space", action="store_true", help="use all 18 actions instead of the game's own")
    text = "truncate games after K frames (108000)"
    add("--max-frames", type=command.positive, default=108_000, metavar="K", help=text)
    text = f"folder with roms, named like boxing.bin (the folder that {ROMS_VARIABLE} names, else ale-py's own)"
    add("--roms", type=Path, metavar="FOLDER", default=_folder(), help=text)
    add("--threads", type=int, default=0, metavar="K", help="emulator threads (0: one per core or game)")
    command.add_atari_protocol(result)
    return result


if __name__ == "__main__":
    command.execute(parser(), main)
