"""The rules of Connect Four, on N boards at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

ROWS, COLUMNS, LINE = 6, 7, 4
Mask = npt.NDArray[np.bool_]
Moves = npt.NDArray[Any]


class Boards:
    """N boards. The stones of the two sides are 1 and -1 in `stones`, int8 [N, ROWS, COLUMNS]; row 0 is the lowest."""

    def __init__(self, count: int) -> None:
        self.stones = np.zeros((count, ROWS, COLUMNS), np.int8)
        self.heights = np.zeros((count, COLUMNS), np.int64)
        self._every = np.arange(count)

    def copy(self) -> Boards:
        """Return boards with the same stones."""
        same = Boards(len(self.stones))
        same.stones[:], same.heights[:] = self.stones, self.heights
        return same

    def valid(self) -> Mask:
        """Return which columns are not full, bool [N, COLUMNS]."""
        valid: Mask = self.heights < ROWS
        return valid

    def clear(self, where: Mask) -> None:
        """Begin a new game where `where` is true, bool [N]."""
        self.stones[where] = 0
        self.heights[where] = 0

    def drop(self, columns: Moves, side: int, where: Mask | None = None) -> tuple[Mask, Mask]:
        """Drop a stone of `side` on each board. Return where it wins, and where the board is full without a winner.

        `columns`: integers [N]. `where`: the boards that get a stone, bool [N]; None for all. Raises ValueError if a
        column is full.
        """
        boards = self._every if where is None else np.flatnonzero(where)
        columns = np.asarray(columns)[boards]
        rows = self.heights[boards, columns]
        if (rows >= ROWS).any():
            raise ValueError(f"column {int(columns[rows >= ROWS][0])} is full")
        self.stones[boards, rows, columns] = side
        self.heights[boards, columns] += 1
        won = has_line(self.stones == side)
        full = (self.heights == ROWS).all(axis=1)
        if where is not None:
            won, full = won & where, full & where
        return won, full & ~won

    def winning(self, side: int) -> Mask:
        """Return the columns in which a stone of `side` wins at once, bool [N, COLUMNS]."""
        valid = self.valid()
        wins = np.zeros_like(valid)
        for column in range(COLUMNS):
            tried = self.copy()
            wins[:, column], _ = tried.drop(np.full(len(wins), column), side, valid[:, column])
        return wins


def has_line(own: Mask) -> Mask:
    """Return where `own`, bool [N, ROWS, COLUMNS], has four in a row, bool [N]."""
    found = np.zeros(len(own), np.bool_)
    for up, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        rows, columns = ROWS - (LINE - 1) * up, COLUMNS - (LINE - 1) * abs(right)
        first = (LINE - 1) if right < 0 else 0
        line = np.ones((len(own), rows, columns), np.bool_)
        for step in range(LINE):
            row, column = step * up, first + step * right
            line &= own[:, row : row + rows, column : column + columns]
        found |= line.any(axis=(1, 2))
    return found


class Scripted:
    """A player without a server: "random" plays any valid column; "blocks" wins at once or blocks, if it can."""

    NAMES: Sequence[str] = ("random", "blocks")

    def __init__(self, name: str, seed: int | Sequence[int] | None = None) -> None:
        if name not in self.NAMES:
            raise ValueError(f"{name!r} is no scripted player: choose one of {', '.join(self.NAMES)}")
        self._looks = name == "blocks"
        self._rng = np.random.default_rng(seed)

    def choose(self, boards: Boards, side: int) -> Moves:
        """Return a column for each board, int64 [N]. A board without a valid column gets any."""
        scores = self._rng.random(boards.heights.shape)
        if self._looks:
            scores += 2.0 * boards.winning(side) + 1.0 * boards.winning(-side)
        columns: Moves = np.where(boards.valid(), scores, -1.0).argmax(axis=1)
        return columns
