"""How an evaluation begins and ends its episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from relaax.bundled import bundled_folder
from relaax.client.command import NOOP, NOOP_FRAMES, NOOP_MAX
from relaax.configuration import ConfigurationError
from relaax.evaluation import scores

NONE, HUMAN_STARTS = "none", "human-starts"
PROTOCOLS = (NOOP, NONE, HUMAN_STARTS)

RANDOM_FRAME_SKIP = 6
"""Frames of an action of the random agent of Mnih et al. 2015: it acts at 10 Hz, as fast as people press a button."""


def is_ale(main: Path) -> bool:
    """Return whether an environment's program is that of the bundled family ALE."""
    return main.parent == bundled_folder("environments") / "ALE"


def atari_game(main: Path, name: str) -> str | None:
    """Return the Atari game that an environment is, as the tables name it; None for any other environment."""
    if is_ale(main):
        return scores.game_of(name) or name
    return scores.game_of(name) if name.startswith("ALE/") or "NoFrameskip" in name else None


def chosen(
    name: str | None, sticky: float | None, game: str | None, *, random: bool = False, has_frame_skip: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Return the options for the environment's program, and what the protocol is, for the result.

    By default it is null ops for Atari games, and none for others. `random`: the agent is; then by null ops it acts as
    seldom as the published one, if the program's frames of an action can be set (`has_frame_skip`). Raises
    ConfigurationError.
    """
    if name is None:
        name = NONE if game is None else NOOP
    if name == HUMAN_STARTS:
        raise ConfigurationError(
            "--protocol human-starts: the starting points of Nair et al. 2015, taken from games of a human, were never "
            "published, so nobody else can play from them; their published scores are shown beside those of null ops, "
            "--protocol noop"
        )
    if game is None and (name == NOOP or sticky is not None):
        option = "--protocol noop" if name == NOOP else "--sticky"
        raise ConfigurationError(f"{option} is for Atari games, which this environment is not")
    if name != NOOP:
        return ([], {"name": NONE}) if sticky is None else (["--sticky", str(sticky)], {"name": NONE, "sticky": sticky})
    options = ["--protocol", NOOP, "--sticky", str(sticky or 0.0)]  # whatever the run had
    facts = {"noop_max": NOOP_MAX, "max_frames": NOOP_FRAMES, "sticky": sticky or 0.0, "whole_games": True}
    if random and has_frame_skip:
        options += ["--frame-skip", str(RANDOM_FRAME_SKIP)]
        facts["frame_skip"] = RANDOM_FRAME_SKIP
    return options, {"name": NOOP, **facts}
