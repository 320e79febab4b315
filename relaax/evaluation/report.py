"""Output of an evaluation: its progress, its result, and tables of results with published scores."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, mean, median
from typing import Any

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from relaax.console import shown
from relaax.evaluation import scores
from relaax.plain_console import PlainConsole

_log = logging.getLogger(__name__)

FIRST_REPORT_SECONDS = 30.0
LAST_REPORT_SECONDS = 600.0
NOT_COMPARABLE = "human starts: not comparable with null-op scores"
OURS = "relaax"
MOST_OUTCOMES = 3
"""Number of different returns up to which the share of each is printed."""
Cell = float | None


class EvaluationProgress:
    """A progress bar with the mean return so far, and log lines if no episode ends for a long time."""

    def __init__(self, bar: Progress, episodes: int) -> None:
        self._bar = bar
        self._episodes = episodes
        self._task = bar.add_task("playing", total=episodes)
        self._returns: list[float] = []
        self._wait = FIRST_REPORT_SECONDS
        self._next_report = time.monotonic() + self._wait

    def add_episode(self, episode_return: float) -> None:
        """Count an episode that has ended, and update the bar."""
        self._returns.append(episode_return)
        self._next_report = time.monotonic() + self._wait
        self._bar.update(self._task, advance=1, description=f"mean return {shown(fmean(self._returns))}")

    def show_step(self, number: int, steps: int) -> None:
        """Show the step of an episode. Log it if no episode ends for 30 s, then after intervals that double."""
        what = f"episode {number + 1} at step {steps:,}"
        so_far = f"mean return {shown(fmean(self._returns))}, " if self._returns else ""
        self._bar.update(self._task, description=so_far + what)
        if time.monotonic() >= self._next_report:
            self._wait = min(2 * self._wait, LAST_REPORT_SECONDS)
            self._next_report = time.monotonic() + self._wait
            _log.warning("%d of %d episodes have ended; %s", len(self._returns), self._episodes, what)


@contextlib.contextmanager
def shown_progress(episodes: int, enabled: bool) -> Iterator[EvaluationProgress]:
    """Show a progress bar on a terminal. Elsewhere, only log if no episode ends for a long time."""
    console = PlainConsole(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not (enabled and console.is_terminal)) as bar:
        yield EvaluationProgress(bar, episodes)


def published_comparison(game: str | None, score: float, is_noop: bool) -> dict[str, Any]:
    """Return the published scores of an Atari game. For null ops, add the human-normalised score in percent."""
    published = scores.noop_starts().get(game or "")
    if game is None or published is None:
        return {}
    found: dict[str, Any] = {"published": {"noop": dict(published)}}
    if is_noop:
        found["human_normalized"] = scores.human_normalized(score, game)
    if game in scores.human_starts():
        found["published"]["human_starts"] = dict(scores.human_starts()[game])
    return found


def print_result(result: dict[str, Any]) -> None:
    """Print the result as text and a table."""
    print(headline(result))
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, value in _rows(result):
        table.add_row(name, value)
    PlainConsole().print(table, highlight=False)
    trained = result["training_mean_return"]
    if result["greedy"] and trained is not None and result["interval_95"][1] < trained:  # beyond chance
        print(
            f"training had a mean return of {shown(trained)} in its last 100 episodes, with sampled actions; early in "
            "training, the most probable actions can score much lower. --sample evaluates with sampled actions"
        )
    for key, starts in (("noop", "null-op starts"), ("human_starts", NOT_COMPARABLE)):
        if known := result.get("published", {}).get(key):
            print(f"published, {starts}: {', '.join(f'{agent} {shown(score)}' for agent, score in known.items())}")


def headline(result: dict[str, Any]) -> str:
    """Return a line that names the environment, the agent, the protocol and the seed."""
    who = "a random agent"
    if result["checkpoint"] is not None:
        who = f"checkpoint {result['checkpoint']} at global step {result['global_step']:,}"
    return f"{result['environment']}: {who}{how_played(result)}, seed {result['seed']}"


def how_played(result: Mapping[str, Any]) -> str:
    """Return how an evaluation was played, each part after a comma: greedy or sampled, starts, limits, stickiness."""
    how = ""
    if result["checkpoint"] is not None:
        how = ", greedy" if result["greedy"] else ", sampled"
    protocol = result["protocol"]
    if protocol["name"] == "noop":
        if "frame_skip" in protocol:
            how += f", an action every {protocol['frame_skip']} frames"
        how += f", null-op starts up to {protocol['noop_max']}, at most {protocol['max_frames']:,} frames"
    if protocol.get("sticky"):
        how += f", sticky actions {protocol['sticky']:g}"
    return how


def _rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    low, high = result["interval_95"]
    rows = [
        ("episodes", f"{result['episodes']:,}"),
        ("mean return", shown(result["mean"])),
        ("95 % interval of the mean", f"{shown(low)} to {shown(high)}"),
        ("standard deviation", shown(result["std"])),
        ("median", shown(result["median"])),
        ("smallest, largest", f"{shown(result['min'])}, {shown(result['max'])}"),
        ("steps, frames", f"{result['steps']:,}, {result['frames']:,}"),
    ]
    counts = Counter(result["returns"])
    if 1 < len(counts) <= MOST_OUTCOMES:  # a game: won, drawn or lost
        shares = (f"{shown(value)}: {100 * counts[value] / result['episodes']:.1f} %" for value in sorted(counts)[::-1])
        rows.append(("returns", ", ".join(shares)))
    if result["cut_off"]:
        rows.append((f"cut off at {result['max_episode_steps']:,} steps", f"{result['cut_off']:,}"))
    if result.get("human_normalized") is not None:
        rows.insert(3, ("human-normalised", f"{result['human_normalized']:,.1f} %"))
    return rows


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A table of results. `name`: of its file, without ending. `columns`: names of a row's numbers. `rows`: by name."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Mapping[str, Sequence[Cell]]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [f"## {self.title}", "", f"| | {' | '.join(self.columns)} |", "|---|" + "---:|" * len(self.columns)]
        for name, row in self.rows.items():
            lines.append(f"| {name} | {' | '.join('' if cell is None else shown(cell) for cell in row)} |")
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return the table as CSV, with unrounded numbers."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["environment", *self.columns])
        writer.writerows([name, *("" if cell is None else cell for cell in row)] for name, row in self.rows.items())
        return out.getvalue()


def score_tables(results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[ScoreTable]:
    """Return the tables of `results` (environment -> seed -> result): evaluations first, then published human starts.

    With null ops, the last rows are the mean and the median of the human-normalised scores over all games, in percent,
    for RELAAX and for the papers, as in Table 1 of Mnih et al. 2016 and of Nair et al. 2015. If all trainings have 10
    million frames, the second table has their scores in training beside published ones of the same kind.
    """
    own = {name: {seed: result["mean"] for seed, result in found.items()} for name, found in results.items()}
    every = [result for found in results.values() for result in found.values()]
    if not any(result["protocol"]["name"] == "noop" for result in every):
        seeds = _seeds(own)
        rows: dict[str, list[Cell]] = {
            name: [median(found.values()), *(found.get(seed) for seed in seeds)] for name, found in own.items()
        }
        return [ScoreTable("table", "Mean returns", ["median", *(f"seed {seed}" for seed in seeds)], rows)]
    tables = [_beside("table", "Null-op starts", own, scores.noop_starts())]
    if all(_trained_frames(result) in scores.TEN_MILLION for result in every):
        trained = {
            name: {seed: result["training_mean_return"] for seed, result in found.items()}
            for name, found in results.items()
        }
        early = scores.after_ten_million_frames()
        tables.append(_beside("training", "In training, after 10 million frames", trained, early, counted=True))
    return [*tables, *_human_starts({name: scores.game_of(name) or "" for name in results})]


def _seeds(own: Mapping[str, Mapping[int, float]]) -> list[int]:
    return sorted({seed for found in own.values() for seed in found})


def _beside(
    name: str, title: str, own: Mapping[str, Mapping[int, float]], published: scores.Table, *, counted: bool = False
) -> ScoreTable:
    """Return a table of our scores (environment -> seed -> score) beside published ones of the same kind.

    `counted`: the last row has the number of games in which our median is at least as high as each published score.
    """
    human = scores.noop_starts()
    agents = dict.fromkeys(agent for row in published.values() for agent in row)
    for agent in (scores.RANDOM, scores.HUMAN):
        agents.pop(agent, None)
    seeds = _seeds(own)
    columns = [scores.RANDOM, scores.HUMAN, f"{OURS}, median", f"{OURS}, %", *(f"seed {seed}" for seed in seeds)]
    rows: dict[str, list[Cell]] = {}
    normalized: dict[str, list[float]] = {agent: [] for agent in (OURS, *agents)}
    reached = dict.fromkeys(agents, 0)
    for environment, found in own.items():
        game = scores.game_of(environment) or ""
        known, scale = published.get(game, {}), human.get(game, {})
        middle = median(found.values())
        ours = [scale.get(scores.RANDOM), scale.get(scores.HUMAN), middle, scores.human_normalized(middle, game)]
        rows[environment] = [*ours, *(found.get(seed) for seed in seeds), *(known.get(agent) for agent in agents)]
        for agent, score in {OURS: middle, **{agent: known.get(agent) for agent in agents}}.items():
            value = None if score is None else scores.human_normalized(score, game)
            if value is not None:
                normalized[agent].append(value)
        for agent in agents:
            reached[agent] += agent in known and middle >= known[agent]
    blank: list[Cell] = [None] * len(seeds)
    averages: dict[str, Callable[[Sequence[float]], float]] = {"mean": mean, "median": median}
    for kind, average in averages.items():
        over = {agent: float(average(values)) if values else None for agent, values in normalized.items()}
        rows[f"{kind}, human-normalised %"] = [0.0, 100.0, None, over.pop(OURS), *blank, *over.values()]
    if counted:
        rows[f"games in which {OURS} has at least this score"] = [*[None] * 4, *blank, *map(float, reached.values())]
    return ScoreTable(name, title, [*columns, *agents], rows)


def _trained_frames(result: Mapping[str, Any]) -> int:
    """Return the frames of an evaluation's training, repeats counted; 0 if they or its last score are not known."""
    if not result.get("global_step") or not result.get("steps") or result["training_mean_return"] is None:
        return 0
    return round(int(result["global_step"]) * int(result["frames"]) / int(result["steps"]))


def _human_starts(games: Mapping[str, str]) -> list[ScoreTable]:
    published = scores.human_starts()
    known = {name: published[game] for name, game in games.items() if game in published}
    agents = list(dict.fromkeys(agent for row in known.values() for agent in row))
    rows = {name: [row.get(agent) for agent in agents] for name, row in known.items()}
    return [ScoreTable("human-starts", f"Published scores with {NOT_COMPARABLE}", agents, rows)] if rows else []
