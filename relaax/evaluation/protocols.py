"""Evaluation protocols: how episodes start and end."""

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
"""Frames per action of the random agent of Mnih et al. 2015: it acts at 10 Hz, as fast as people press a button."""


def is_ale(main: Path) -> bool:
    """Return whether the environment's program is the bundled ALE program."""
    return main.parent == bundled_folder("environments") / "ALE"


def atari_game(main: Path, name: str) -> str | None:
    """Return the Atari game of an environment, by its name in the score tables; None for any other environment."""
    if is_ale(main):
        return scores.game_of(name) or name
    return scores.game_of(name) if name.startswith("ALE/") or "NoFrameskip" in name else None


def protocol_options(
    name: str | None, sticky: float | None, game: str | None, *, random: bool = False, has_frame_skip: bool = False
) -> tuple[list[str], dict[str, Any]]:
    """Return the options of a protocol for the environment's program, and its description for the result.

    The default is null ops for Atari games, and no protocol for other environments. `random`: the agent acts at random.
    With null ops it then acts as rarely as the published random agent, if the program's frames per action can be set
    (`has_frame_skip`). Raises ConfigurationError.
    """
    if name is None:
        name = NONE if game is None else NOOP
    if name == HUMAN_STARTS:
        raise ConfigurationError(
            "--protocol human-starts is not supported: the starting points of Nair et al. 2015 were never published; "
            "use --protocol noop, which also prints the published scores with human starts"
        )
    if game is None and (name == NOOP or sticky is not None):
        option = "--protocol noop" if name == NOOP else "--sticky"
        raise ConfigurationError(f"{option} is for Atari games, and this environment is not one: omit it")
    if name != NOOP:
        return ([], {"name": NONE}) if sticky is None else (["--sticky", str(sticky)], {"name": NONE, "sticky": sticky})
    options = ["--protocol", NOOP, "--sticky", str(sticky or 0.0)]  # not the stickiness of the run
    facts = {"noop_max": NOOP_MAX, "max_frames": NOOP_FRAMES, "sticky": sticky or 0.0, "whole_games": True}
    if random and has_frame_skip:
        options += ["--frame-skip", str(RANDOM_FRAME_SKIP)]
        facts["frame_skip"] = RANDOM_FRAME_SKIP
    return options, {"name": NOOP, **facts}
