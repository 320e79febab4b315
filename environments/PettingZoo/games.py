"""Several copies of a PettingZoo environment as one vector: a row for each agent that the policy plays."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from relaax.client import command

ALL, ALTERNATE = "all", "alternate"
_ORDINALS = {"first": 0, "second": 1}


class ZooGames:
    """A vector of environments for `relaax.client.run`, with the autoreset mode SAME_STEP.

    `envs`: copies of the environment. `play`: which agents the policy plays: "all", "first", "second", "alternate"
    (another one in each game), the name of an agent, or its kind. The other agents act at random. Raises
    command.UsageError if there is no such agent, or if the agents are of different kinds.

    With several rows for each copy, the vector is out of step: `infos["idle"]` marks the agents that wait, and
    `infos["game_over"]` is true when a game has ended. `game_number`: number of the next game, by which the policy's
    agent alternates; None for the seed.
    """

    autoreset_mode = "same_step"

    def __init__(self, envs: Sequence[Any], name: str, play: str, metrics: Collection[str] = ()) -> None:
        copies = command.sibling_module(__package__, "copies")
        self.envs, count = envs, len(envs)
        agents = agents_of(envs[0], name)
        seats = played_agents(agents, name, play)
        masked = copies.is_masked(envs[0], seats)
        spaces = common_spaces(envs[0], name, seats, masked)
        alternates = play == ALTERNATE
        each = 1 if alternates else len(seats)
        self._rows = command.sibling_module(__package__, "rows").Rows(*spaces, each * count, metrics)
        rows = [self._rows[index] for index in range(each * count)]
        self._copies = copies.copies_of(
            envs,
            [copies.alternating(seats, row) for row in rows]
            if alternates
            else [copies.fixed(dict(zip(seats, rows[i : i + each], strict=True))) for i in range(0, len(rows), each)],
            masked,
        )
        self.num_envs, self.out_of_step = each * count, each > 1
        self.game_number: int | None = None
        self.single_observation_space, self.single_action_space = spaces
        self.metadata = getattr(envs[0], "metadata", {})

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game in each copy. Copy number i gets the seed `seed + i`."""
        self._rows.clear()
        for i, copy in enumerate(self._copies):
            copy.reset(None if seed is None else seed + i, self.game_number)
        return self._rows.states, self._infos()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take the actions of the agents that want one. Return the outcomes until each copy wants an action again."""
        rows = self._rows
        rows.set_actions(actions)
        rows.clear()
        for copy in self._copies:
            copy.step()
        return rows.states, rows.rewards, rows.terminated, rows.truncated, self._infos()

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def _infos(self) -> dict[str, Any]:
        infos = {**self._rows.infos, "final_obs": self._rows.final_states}
        if self.out_of_step:
            infos["idle"], infos["game_over"] = self._rows.idle, any(copy.has_begun_game for copy in self._copies)
        return infos


def agents_of(env: Any, name: str) -> list[Any]:
    """Return all agents that may appear. Raises command.UsageError if the environment does not list them."""
    agents = list(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise command.UsageError(f"{name} has no possible_agents: list all agents there, because each gets a row")
    return agents


def kind_of(agent: Any) -> str:
    """Return the kind of an agent: its name without the number at its end, such as `archer` for `archer_0`."""
    return re.sub(r"[_-]?\d+$", "", str(agent)) or str(agent)


def played_agents(agents: Sequence[Any], name: str, play: str) -> list[Any]:
    """Return the agents that the policy plays, at least in some games. Raises command.UsageError."""
    if play in (ALL, ALTERNATE):
        return list(agents)
    if play in _ORDINALS and _ORDINALS[play] < len(agents):
        return [agents[_ORDINALS[play]]]
    found = [agent for agent in agents if play in (str(agent), kind_of(agent))]
    if not found:
        kinds = dict.fromkeys(kind_of(agent) for agent in agents)
        known = dict.fromkeys((*_ORDINALS, ALTERNATE, ALL, *kinds, *map(str, agents)))
        raise command.UsageError(f"--play {play}: {name} has no such agent; choose one of {', '.join(known)}")
    return found


def common_spaces(env: Any, name: str, agents: Sequence[Any], masked: bool) -> tuple[Any, Any]:
    """Return the spaces of observations and actions. Raises command.UsageError if they differ between the agents."""
    copies = command.sibling_module(__package__, "copies")
    groups: list[tuple[Any, Any, list[Any]]] = []
    for agent in agents:
        spaces = copies.observation_space(env, agent, masked), env.action_space(agent)
        same = next((group[2] for group in groups if group[:2] == spaces), None)
        if same is None:
            groups.append((*spaces, [agent]))
        else:
            same.append(agent)
    if len(groups) > 1:
        listed = "; ".join(
            f"{', '.join(map(str, group))}: observations {seen}, actions {done}" for seen, done, group in groups
        )
        raise command.UsageError(
            f"{name} has {len(groups)} kinds of agents ({listed}), and one policy needs equal spaces: run one service "
            "for each kind, with environments/PettingZoo/teams.py"
        )
    return groups[0][:2]
