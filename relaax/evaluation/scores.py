"""Published scores of Atari games, from the tables in environments/ALE."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping

from relaax.bundled import bundled_folder

RANDOM, HUMAN = "random", "human"
_ATARI_ID = re.compile(r"(?:ALE/)?(\w+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")
TEN_MILLION = range(9_500_000, 10_500_001)
"""Numbers of frames after which a training is compared with `after_ten_million_frames`."""
_SPELLINGS = {"montezumasrevenge": "montezumarevenge", "upanddown": "upndown"}

Table = Mapping[str, Mapping[str, float]]


@functools.cache
def noop_starts() -> Table:
    """Return scores with null-op starts: game -> agent -> score. Names of games have only lower-case letters."""
    return _read("scores_noop.csv")


@functools.cache
def human_starts() -> Table:
    """Return scores with human starts: game -> agent -> score. They are not comparable with null-op scores."""
    return _read("scores_human_starts.csv")


@functools.cache
def after_ten_million_frames() -> Table:
    """Return scores in training after 10 million frames: game -> agent -> score. The file names the sources."""
    return _read("scores_10m_frames.csv")


def game_of(environment: str) -> str | None:
    """Return a game's name in the tables, from its ROM (ms_pacman) or id (ALE/MsPacman-v5); None for others."""
    match = _ATARI_ID.fullmatch(environment)
    name = _letters(match[1]) if match else ""
    return name if name in noop_starts() else None


def human_normalized(score: float, game: str) -> float | None:
    """Return 100 (score - random) / (human - random), in percent (Mnih et al. 2015); None for an unknown game."""
    published = noop_starts().get(game)
    if published is None:
        return None
    low, high = published[RANDOM], published[HUMAN]
    return 100 * (score - low) / (high - low)


def _letters(name: str) -> str:
    letters = re.sub("[^a-z]", "", name.lower())
    return _SPELLINGS.get(letters, letters)


def _read(name: str) -> Table:
    """Return a table. Lines that begin with # name its sources."""
    with (bundled_folder("environments") / "ALE" / name).open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {
            _letters(row["game"]): {agent: float(cell) for agent, cell in row.items() if agent != "game" and cell}
            for row in rows
        }
