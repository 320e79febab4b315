"""The figures of a study in a CSV file, and the tables that a study writes into a page of the documentation."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

HEAD = ("part", "case", "round", "figure", "value")


@dataclass(frozen=True)
class Row:
    """A figure. `case`: a case of the part, such as a number of connections. `round`: 1, 2 ..."""

    part: str
    case: int
    round: int
    figure: str
    value: float


class Rows:
    """All figures of a study, in the order of measurement."""

    def __init__(self, path: Path) -> None:
        """Read the file of an earlier run, if there is one. Raises ValueError if it is not such a file."""
        self._path = path
        self.rows: list[Row] = []
        if path.is_file():
            with path.open(newline="", encoding="utf-8") as file:
                lines = list(csv.reader(file))
            if not lines or tuple(lines[0]) != HEAD:
                raise ValueError(f"{path} has no columns {', '.join(HEAD)}: move the file, or set another --output")
            self.rows = [Row(part, int(case), int(round_), name, float(v)) for part, case, round_, name, v in lines[1:]]

    def has(self, part: str, case: int, round_: int) -> bool:
        """Return whether a round of a case was measured."""
        return any((row.part, row.case, row.round) == (part, case, round_) for row in self.rows)

    def add(self, part: str, case: int, round_: int, figures: Mapping[str, float]) -> None:
        """Add the figures of a round, and write the file."""
        self.rows += [Row(part, case, round_, name, float(f"{value:.5g}")) for name, value in figures.items()]
        with self._path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(HEAD)
            writer.writerows(astuple(row) for row in self.rows)

    def rounds(self, part: str, case: int = 0) -> list[dict[str, float]]:
        """Return the figures of each round."""
        found: dict[int, dict[str, float]] = {}
        for row in self.rows:
            if (row.part, row.case) == (part, case):
                found.setdefault(row.round, {})[row.figure] = row.value
        return [found[round_] for round_ in sorted(found)]

    def figures(self, part: str, case: int, round_: int) -> dict[str, float]:
        """Return the figures of one round; an empty dictionary if it was not measured."""
        return {row.figure: row.value for row in self.rows if (row.part, row.case, row.round) == (part, case, round_)}

    def cases(self, part: str) -> list[int]:
        """Return the measured cases of a part in ascending order."""
        return sorted({row.case for row in self.rows if row.part == part})


def study_page(results: Path, name: str) -> Path:
    """Return the newest page of a study in `results/archive`; without a page, return a path with today's date."""
    archive = results / "archive"
    archive.mkdir(parents=True, exist_ok=True)
    return max(archive.glob(f"????-??-??-{name}.md"), default=archive / f"{time.strftime('%Y-%m-%d')}-{name}.md")


def write_tables(page: Path, name: str, text: str) -> None:
    """Replace the text between the two comments that name these tables. The rest of the page does not change.

    If the page does not have the comments, append them. Raises ValueError if the second comment is missing.
    """
    begin, end = f"<!-- {name}: written by a command -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = page.read_text("utf-8").partition(begin) if page.is_file() else ("", "", "")
    _, ends, after = rest.partition(end)
    if found and not ends:
        raise ValueError(f"{page} has the line {begin.strip()!r}, but no {end.strip()!r} after it")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
