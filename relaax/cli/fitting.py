"""Text and tables that fit the width of a terminal. Names are shortened, numbers never."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from relaax.console import one_line

MIN_NAME_WIDTH = 8
"""Minimum width of a column of names, in columns of the terminal."""


def shortened(text: str, width: int, keep_end: bool = False) -> str:
    """Return `text` in at most `width` cells, with an ellipsis in place of its end, or of its start if `keep_end`."""
    if cell_len(text) <= width:
        return text
    if not keep_end:
        return set_cell_size(text, max(0, width - 1)).rstrip() + "…"
    while text and cell_len(text) >= width:
        text = text[1:]
    return "…" + text


@dataclass(slots=True)
class Column:
    """A column of a `FittingTable`.

    name: whether it holds names, which may be shortened. Numbers are never shortened.
    left: whether it holds words, which are aligned to the left and never shortened.
    keep_end: whether a shortened name keeps its end instead of its start, as for HOST:PORT.
    spare: order of removal. If the table is too wide, columns with the highest `spare` are removed first, 0 never.
    """

    header: str
    name: bool = False
    left: bool = False
    keep_end: bool = False
    spare: int = 0
    cells: list[str] = field(default_factory=list)

    def min_width(self) -> int:
        """Return the minimum width."""
        longest = max(map(cell_len, self.cells), default=0)
        if self.name:
            return min(max(MIN_NAME_WIDTH, cell_len(self.header)), max(longest, cell_len(self.header)))
        return max([longest, *map(cell_len, self.header.split())])  # a header may take two lines

    def full_width(self) -> int:
        """Return the width at which no cell is shortened and the header takes one line."""
        return max(map(cell_len, [self.header, *self.cells]))


class FittingTable:
    """A table for any width: headers wrap first, then names are shortened, then spare columns are removed."""

    def __init__(self, title: str, *columns: Column) -> None:
        self._title = title
        self._columns = columns
        self._styles: list[str] = []

    def add_row(self, *cells: str, style: str = "") -> None:
        """Add a row; missing cells are empty."""
        for column, cell in zip(self._columns, [*cells, *[""] * (len(self._columns) - len(cells))], strict=True):
            column.cells.append(one_line(cell))
        self._styles.append(style)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table for the width of `options`, and a line that names the removed columns."""
        columns, widths, gap = self._fit(options.max_width)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, gap - 1))
        for column, width in zip(columns, widths, strict=True):
            justify: JustifyMethod = "left" if column.name or column.left else "right"
            table.add_column(Text(column.header), width=width, overflow="fold", justify=justify, vertical="bottom")
        for row, style in enumerate(self._styles):
            cells = (_cell(column, row, width) for column, width in zip(columns, widths, strict=True))
            table.add_row(*cells, style=style)
        if self._title:
            yield Text(one_line(self._title), "table.title")
        yield table
        missing = [column.header for column in self._columns if column not in columns]
        if missing:
            yield Text(f"a wider terminal shows: {', '.join(missing)}", "dim")

    def _fit(self, room: int) -> tuple[Sequence[Column], list[int], int]:
        """Return the columns that fit into `room`, their widths, and the gap between them."""
        columns = list(self._columns)
        while _total(smallest := [column.min_width() for column in columns], 1) > room:
            spare = max(columns, key=lambda column: column.spare)
            if not spare.spare:
                break
            columns.remove(spare)
        full = [column.full_width() for column in columns]
        if _total(full, 2) < room:  # rich 13 adds a gap after the last column
            return columns, full, 2
        widths = smallest
        for names in (True, False):  # names get space before the headers of numbers fit one line
            for index, column in enumerate(columns):
                if column.name is names:
                    widths[index] += max(0, min(full[index] - widths[index], room - _total(widths, 1)))
        return columns, widths, 1


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _cell(column: Column, row: int, width: int) -> Text:
    text = column.cells[row]
    return Text(shortened(text, width, column.keep_end) if column.name else text)
