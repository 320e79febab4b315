"""The table of a suite: medians over seeds, human-normalised scores, and those of the papers beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from relaax.cli.evaluate.report import NOT_COMPARABLE
from relaax.console import shown
from relaax.evaluation import scores

OURS = "relaax"
Cell = float | None
HEADING = {"noop": "Null-op starts", "human": f"Published scores with {NOT_COMPARABLE}"}


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Rows of names and numbers. `columns`: names of the numbers."""

    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Cell]]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [
            f"## {self.title}",
            "",
            "| | " + " | ".join(self.columns) + " |",
            "|---|" + "---:|" * len(self.columns),
        ]
        lines += [f"| {name} | " + " | ".join(map(_cell, row)) + " |" for name, row in self.rows.items()]
        return "\n".join(lines) + "\n"


def tables(results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[ScoreTable]:
    """Return the tables of results, by environment and seed: the suite's own, then that of human starts, if any.

    As Table 1 of Mnih et al. 2016 and of Nair et al. 2015: the last rows are mean and median over the games of the
    human-normalised scores, in percent, ours and those of the papers.
    """
    games = {name: scores.game_of(name) for name in results}
    medians = {name: median(result["mean"] for result in by_seed.values()) for name, by_seed in results.items()}
    seeds = sorted({seed for by_seed in results.values() for seed in by_seed})
    own = {
        name: [by_seed[seed]["mean"] if seed in by_seed else None for seed in seeds]
        for name, by_seed in results.items()
    }
    if not any(_is_noop(by_seed) for by_seed in results.values()):
        columns = ["median", *(f"seed {seed}" for seed in seeds)]
        return [ScoreTable("Mean returns", columns, {name: [medians[name], *own[name]] for name in results})]
    published = scores.noop_starts()
    agents = [agent for agent in next(iter(published.values())) if agent not in (scores.RANDOM, scores.HUMAN)]
    columns = ["random", "human", f"{OURS}, median", f"{OURS}, %", *(f"seed {seed}" for seed in seeds), *agents]
    rows: dict[str, list[Cell]] = {}
    normalized: dict[str, list[float]] = {name: [] for name in (OURS, *agents)}
    for name, game in games.items():
        known = published.get(game or "", {})
        percent = scores.human_normalized(medians[name], game or "")
        row = [known.get(scores.RANDOM), known.get(scores.HUMAN), medians[name], percent, *own[name]]
        rows[name] = [*row, *(known.get(agent) for agent in agents)]
        for agent, score in ((OURS, medians[name]), *((agent, known.get(agent)) for agent in agents)):
            value = None if score is None or game is None else scores.human_normalized(score, game)
            if value is not None:
                normalized[agent].append(value)
    blank: list[Cell] = [None] * len(seeds)
    for title, over in (("mean", mean), ("median", median)):
        rows[f"{title}, human-normalised %"] = [
            *(0.0, 100.0, None, _of(over, normalized[OURS])),
            *(*blank, *(_of(over, normalized[agent]) for agent in agents)),
        ]
    return [ScoreTable(HEADING["noop"], columns, rows), *_human_starts(games)]


def csv_of(table: ScoreTable) -> str:
    """Return a table as CSV, with numbers as they are."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["environment", *table.columns])
    writer.writerows([name, *("" if cell is None else cell for cell in row)] for name, row in table.rows.items())
    return out.getvalue()


def _human_starts(games: Mapping[str, str | None]) -> list[ScoreTable]:
    published = scores.human_starts()
    known = {name: published[game] for name, game in games.items() if game is not None and game in published}
    if not known:
        return []
    agents = list(dict.fromkeys(agent for row in known.values() for agent in row))
    rows = {name: [row.get(agent) for agent in agents] for name, row in known.items()}
    return [ScoreTable(HEADING["human"], agents, rows)]


def _is_noop(by_seed: Mapping[int, Mapping[str, Any]]) -> bool:
    return any(result["protocol"]["name"] == "noop" for result in by_seed.values())


def _of(over: Any, values: Sequence[float]) -> float | None:
    return float(over(values)) if values else None


def _cell(value: Cell) -> str:
    return "" if value is None else shown(value)
