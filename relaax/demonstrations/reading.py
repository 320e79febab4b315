"""A reader of recorded episodes, which checks all that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from relaax.demonstrations.columns import Array, RecordedSpaces, RecordingError, StepColumns, leaf_of
from relaax.rlx import ElementarySpace, Leaves
from relaax.rlx.errors import ProtocolError
from relaax.rlx.leaf_checks import LeavesCheck, is_within
from relaax.rlx.messages import MAX_REWARD

SUFFIX = ".parquet"
_DAMAGED = (OSError, pa.ArrowException, ValueError, MemoryError)
"""Errors of Arrow for a damaged file: some of its texts are not UTF-8, or a size is wrong."""


class RecordedEpisodes:
    """The episodes of a Parquet file, or of all Parquet files of a folder. Raises RecordingError.

    `description`: spaces and environment, the same in all files. `episodes`, `steps`: their numbers. `mean_return` and
    `returns` are of all episodes. All files are read and checked once, and again in each iteration, one at a time.
    """

    def __init__(self, path: Path) -> None:
        self._paths = _paths(path)
        self.description = _description(self._paths[0])
        self.returns: list[float] = []
        self.steps = 0
        for episode in self:
            self.returns.append(episode.episode_return)
            self.steps += len(episode)
        self.episodes = len(self.returns)
        if not self.episodes:
            raise RecordingError(f"{path}: there is no episode")

    @property
    def mean_return(self) -> float:
        """The mean return of all episodes."""
        return float(np.mean(self.returns))

    def __iter__(self) -> Iterator[StepColumns]:
        for path in self._paths:
            yield from self._episodes_of(path)

    def shuffled(self, rng: np.random.Generator) -> Iterator[StepColumns]:
        """Yield all episodes, with the files in random order, and the episodes of each file."""
        for at in rng.permutation(len(self._paths)).tolist():
            episodes = list(self._episodes_of(self._paths[at]))
            yield from (episodes[index] for index in rng.permutation(len(episodes)).tolist())

    def _episodes_of(self, path: Path) -> Sequence[StepColumns]:
        try:
            with pq.ParquetFile(path) as file:
                description = RecordedSpaces.of(file.schema_arrow)
                if description != self.description:
                    raise RecordingError(f"it has another description than {self._paths[0]}: {description}")
                table = file.read()
            return [] if not len(table) else _File(table, self.description).episodes()
        except RecordingError as error:
            raise RecordingError(f"{path}: {error}") from None
        except _DAMAGED as error:
            raise RecordingError(f"{path}: it cannot be read: {_first_line(error)}") from None


class _File:
    """The checked columns of one file. Raises RecordingError."""

    def __init__(self, table: pa.Table, description: RecordedSpaces) -> None:
        self._table, self._description = table, description
        self._observations = self._leaves(description.observation)
        self._actions = self._leaves(description.action)
        self._chosen = self._numbers("chosen", pa.bool_())
        self._rewards = self._numbers("reward", pa.float64())
        self._steps = self._numbers("step", pa.int64())
        self._terminated = self._numbers("terminated", pa.bool_())
        self._truncated = self._numbers("truncated", pa.bool_())
        if not is_within(self._rewards, MAX_REWARD):
            row = int(np.flatnonzero(~(np.abs(self._rewards) <= MAX_REWARD))[0])
            raise RecordingError(f"row {row}: the reward is {self._rewards[row]}; at most {MAX_REWARD:g} is allowed")
        self._check("observation", description.observation_space, self._observations, False)
        self._check("action", description.action_space, self._actions, True)

    def episodes(self) -> list[StepColumns]:
        """Return the episodes."""
        ended = self._terminated | self._truncated
        names = self._column("episode").to_pylist()
        if not ended[-1]:
            raise RecordingError(f"episode {names[-1]!r} has no end: its last row is neither terminated nor truncated")
        found, start = [], 0
        for end in (np.flatnonzero(ended) + 1).tolist():
            rows = slice(start, end)
            wrong = next((row for row in range(start, end) if self._steps[row] != row - start), None)
            if wrong is None:
                wrong = next((row for row in range(start, end) if names[row] != names[start]), None)
            if wrong is not None:
                raise RecordingError(
                    f"row {wrong}: step {self._steps[wrong]} of episode {names[wrong]!r} is not the next step of "
                    f"episode {names[start]!r}"
                )
            if self._terminated[end - 1] and self._truncated[end - 1]:
                raise RecordingError(f"row {end - 1}: an episode is either terminated or truncated, not both")
            found.append(self._episode(rows, end - 1))
            start = end
        return found

    def _episode(self, rows: slice, last: int) -> StepColumns:
        return StepColumns(
            [leaf[rows] for leaf in self._observations],
            [leaf[rows] for leaf in self._actions],
            self._chosen[rows],
            self._rewards[rows],
            bool(self._terminated[last]),
            bool(self._truncated[last]),
            self._final(last) if self._truncated[last] else None,
        )

    def _final(self, row: int) -> Leaves:
        leaves: Leaves = []
        for name, element in self._description.final:
            column = self._column(name).slice(row, 1)
            if column.null_count:
                raise RecordingError(f"row {row}: {name} is missing; a truncated episode needs it")
            leaves.append(self._leaf(name, column, element))
        self._check("final_observation", self._description.observation_space, leaves, False)
        return leaves

    def _leaves(self, columns: Sequence[tuple[str, ElementarySpace]]) -> Leaves:
        return [self._leaf(name, self._column(name), element) for name, element in columns]

    @staticmethod
    def _leaf(name: str, column: pa.ChunkedArray, element: ElementarySpace) -> Array:
        try:
            return leaf_of(column, element)
        except RecordingError as error:
            raise RecordingError(f"column {name}: {error}") from None

    def _column(self, name: str) -> pa.ChunkedArray:
        if name not in self._table.column_names:
            raise RecordingError(f"there is no column {name}")
        return self._table.column(name)

    def _numbers(self, name: str, kind: pa.DataType) -> Any:
        column = self._column(name)
        if column.type != kind:
            raise RecordingError(f"column {name}: its type is {column.type}; {kind} is expected")
        if column.null_count:
            raise RecordingError(f"column {name}: it has missing values")
        return column.combine_chunks().to_numpy(zero_copy_only=False)

    def _check(self, name: str, space: Any, leaves: Leaves, bounded: bool) -> None:
        """Raise RecordingError for values outside of their space."""
        try:
            LeavesCheck(space, len(leaves[0]), bounded).check(name, leaves)
        except ProtocolError as error:
            raise RecordingError(str(error)) from None


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.suffix == SUFFIX and not each.name.startswith("."))
        if not found:
            raise RecordingError(f"{path}: there is no {SUFFIX} file in this folder")
        return found
    if not path.exists():
        raise RecordingError(f"{path}: there is no such file or folder; `relaax record` makes one")
    return [path]


def _description(path: Path) -> RecordedSpaces:
    try:
        return RecordedSpaces.of(pq.read_schema(path))
    except RecordingError as error:
        raise RecordingError(f"{path}: {error}") from None
    except _DAMAGED as error:
        raise RecordingError(f"{path}: it is not a Parquet file: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
