#!/usr/bin/env python3
"""Train each kind of agents with a service of its own: `teams.py NAME KIND=HOST:PORT [KIND=HOST:PORT ...]`.

A kind is a name without the number at its end: `archer` stands for archer_0 and archer_1. All kinds meet in the same
games. Agents of other kinds act at random.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from relaax.client import TrainingFinished, VectorClient, command
from relaax.client.program import modules


class Team:
    """The agents of one kind in all copies, and their client. `actions`: their number. `returns`: of all episodes."""

    def __init__(self, rows: Any, client: VectorClient) -> None:
        self.rows, self._client = rows, client
        self.actions = 0
        self.returns: list[float] = []
        self._sums = np.zeros(len(rows))

    def begin(self) -> None:
        """Send the first states."""
        rows = self.rows
        self._take(self._client.init(rows.states, rows.idle))

    def step(self) -> None:
        """Send the outcomes of a step, if there are any."""
        rows = self.rows
        if not rows.has_news:
            return
        self._sums += rows.rewards
        ended = rows.terminated | rows.truncated
        self.returns += self._sums[ended].tolist()
        self._sums[ended] = 0.0
        outcome = rows.rewards, rows.states, rows.terminated, rows.truncated, rows.final_states
        self._take(self._client.step(*outcome, idle=rows.idle))

    def _take(self, actions: Any) -> None:
        self.rows.set_actions(actions)
        self.actions += int(np.count_nonzero(~self.rows.idle))


def main(arguments: argparse.Namespace) -> None:
    """Play until a service has finished its training, or until the number of steps is reached."""
    naming, games, copies, rows_of = (
        command.sibling_module(__package__, name) for name in ("naming", "games", "copies", "rows")
    )
    found = naming.find(arguments.name, arguments.path)
    addresses = dict(arguments.teams)
    envs = [naming.make(found, dict(arguments.kwarg), False) for _ in range(arguments.copies)]
    agents = games.agents_of(envs[0], found.name)
    masked = copies.is_masked(envs[0], agents)
    seats: list[dict[Any, Any]] = [{} for _ in envs]
    teams: dict[str, Team] = {}
    with ExitStack() as stack:
        for kind, address in addresses.items():
            members = games.played_agents(agents, found.name, kind)
            spaces = games.common_spaces(envs[0], found.name, members, masked)
            rows = rows_of.Rows(*spaces, len(members) * len(envs))
            for index in range(len(rows)):
                seats[index // len(members)][members[index % len(members)]] = rows[index]
            client = VectorClient(
                address,
                environments=len(rows),
                out_of_step=True,
                observation_space=rows.observation_space,
                action_space=rows.action_space,
                environment=f"{found.name} {kind}",
            )
            teams[kind] = Team(rows, stack.enter_context(client))
        try:
            play(copies.copies_of(envs, [copies.fixed(one) for one in seats], masked), list(teams.values()), arguments)
        except TrainingFinished as end:
            print(end.message)
    for kind, team in teams.items():
        mean = f", mean return {np.mean(team.returns):.3g}" if team.returns else ""
        print(f"{kind}: {team.actions} actions, {len(team.returns)} episodes{mean}")
    for env in envs:
        env.close()


def play(copies: Sequence[Any], teams: Sequence[Team], arguments: argparse.Namespace) -> None:
    """Step all copies until the number of actions is reached. Raises TrainingFinished."""
    for index, copy in enumerate(copies):
        copy.reset(None if arguments.seed is None else arguments.seed + index)
    for team in teams:
        team.begin()
    while arguments.steps is None or sum(team.actions for team in teams) < arguments.steps:
        for team in teams:
            team.rows.clear()
        for copy in copies:
            copy.step()
        for team in teams:
            team.step()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the program's arguments."""
    result = argparse.ArgumentParser(description="Train each kind of agents with a service of its own.")
    add: Any = result.add_argument
    add("name", metavar="NAME", help="an environment, as for main")
    add("teams", metavar="KIND=HOST:PORT", type=_team, nargs="+", help="a kind of agents and its RLX server")
    add("--copies", type=command.positive, default=1, metavar="N", help="copies of the environment (1)")
    add("--steps", type=command.positive, metavar="N", help="end after N actions of all agents")
    add("--seed", type=int, metavar="N", help="seed of the first copy; the next ones get the following numbers")
    add("--kwarg", metavar="NAME=VALUE", type=modules.kwarg, action="append", default=[], help="as for main")
    add("--path", metavar="FOLDER", action="append", default=[], help="as for main")
    return result


def _team(text: str) -> tuple[str, str]:
    kind, equals, address = text.partition("=")
    if not kind or not equals or not address:
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND=HOST:PORT, such as archer=localhost:7001")
    return kind, address


if __name__ == "__main__":
    try:
        main(parser().parse_args())
    except command.UsageError as error:
        sys.exit(f"teams: {error}")
