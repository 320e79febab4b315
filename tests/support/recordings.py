"""Recorded episodes for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from relaax.demonstrations.columns import RecordedSpaces, StepColumns
from relaax.demonstrations.writing import EpisodeFiles


def steps_of(
    description: RecordedSpaces, length: int, truncated: bool = False, rng: np.random.Generator | None = None
) -> StepColumns:
    """Return an episode with a Box as observation and a Discrete action; without `rng`, of zeros."""
    (seen,), (choice,) = description.observation_space.elements(), description.action_space.elements()
    draw = rng or np.random.default_rng(0)

    def observations(count: int) -> Any:
        numbers = draw.normal(size=(count, *seen.shape)) if rng else np.zeros((count, *seen.shape))
        return [numbers.astype(seen.dtype)]

    return StepColumns(
        observations(length),
        [draw.integers(0, choice.n, length)],
        np.ones(length, np.bool_),
        draw.normal(size=length),
        not truncated,
        truncated,
        observations(1) if truncated else None,
    )


def written(folder: Path, *episodes: StepColumns, description: RecordedSpaces) -> Path:
    """Write episodes to one file of a folder, and return the folder."""
    files = EpisodeFiles(folder, description)
    for episode in episodes:
        files.add(episode)
    files.write()
    return folder


def arrays_of(episode: StepColumns) -> list[Any]:
    """Return all arrays of an episode, except which actions were chosen."""
    return [*episode.observations, *episode.actions, episode.rewards, *(episode.final or [])]
