"""PettingZoo environments whose agents act, die and come at random, and that keep a ledger of their agents' actions.

An action is the number that `turn_algorithm` gave it. When it is complete, the environment writes an entry to a file of
the folder `ledger`: what must be in the agent's journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv, ParallelEnv

State = npt.NDArray[np.float32]
COLOURS = ("red", "blue")
DIES, COMES = 0.08, 0.3


class Ledger:
    """The actions in progress, and a file of completed actions."""

    def __init__(self, folder: str) -> None:
        self._file = (Path(folder) / f"{os.getpid()}-{id(self)}.jsonl").open("w")
        self._open: dict[str, dict[str, Any]] = {}

    def begin(self, agent: str, number: int, state: State) -> None:
        """Begin an action of an agent."""
        assert agent not in self._open, "an agent acted twice"
        self._open[agent] = {"number": int(number), "reward": 0.0, "chosen_on": state.tolist()}

    def add(self, agent: str, reward: float) -> None:
        """Add a reward to the agent's action, if it has acted."""
        if agent in self._open:
            self._open[agent]["reward"] += reward

    def end(self, agent: str, state: State, terminated: bool = False, truncated: bool = False) -> None:
        """Complete the agent's action, if it has acted."""
        if agent in self._open:
            flags = {"terminated": terminated, "truncated": truncated and not terminated}
            entry = {**self._open.pop(agent), **flags, "after": None if terminated else state.tolist()}
            self._file.write(f"{json.dumps(entry)}\n")
            self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Scripted:
    """The agents of both kinds of environments, and their states."""

    metadata: ClassVar[dict[str, Any]] = {"name": "scripted", "render_modes": []}
    render_mode = None

    def __init__(self, ledger: str, agents: int = 4) -> None:
        self.possible_agents = [f"{COLOURS[2 * i // agents]}_{i}" for i in range(agents)]
        self.agents: list[str] = []
        self._ledger = Ledger(ledger)
        self._serial = 0
        self._states: dict[str, State] = {}
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        return Box(-np.inf, np.inf, (2,))

    def action_space(self, agent: str) -> Discrete:
        return Discrete(2**62)

    def _draw(self, chance: float) -> bool:
        return bool(self._rng.random() < chance)

    def _reward(self) -> float:
        return float(self._rng.integers(-(2**30), 2**30))

    def _new_states(self, agents: Sequence[str]) -> None:
        for agent in agents:
            self._serial += 1
            self._states[agent] = np.array([self.possible_agents.index(agent), self._serial], np.float32)

    def _ends(self) -> tuple[bool, bool]:
        """Return whether an agent is terminated, and whether it is truncated."""
        return self._draw(DIES), self._draw(DIES / 2)

    def _coming(self) -> list[str]:
        """Return agents that come back while the game continues."""
        away = [agent for agent in self.possible_agents if agent not in self.agents]
        return away[:1] if away and self._draw(COMES) else []

    def close(self) -> None:
        self._ledger.close()


class ScriptedTurns(_Scripted, AECEnv):  # type: ignore[misc]
    """The next agent is drawn. `deads_first`: agents that have died are selected next, as PettingZoo's helper does."""

    def __init__(self, ledger: str, agents: int = 4, deads_first: bool = True) -> None:
        super().__init__(ledger, agents)
        self._deads_first = deads_first

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = [agent for agent in self.possible_agents if self._draw(0.8)] or self.possible_agents[:1]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None
        self._new_states(self.agents)
        self._select()

    def observe(self, agent: str) -> State:
        return self._states[agent]

    def step(self, action: int | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            if self.agents and not self._deads_first:
                self._skip_agent_selection = None
                self._select()
            return
        assert action is not None
        self._ledger.begin(agent, action, self._states[agent])
        self._cumulative_rewards[agent] = 0.0
        for one in self._coming():
            self.agents.append(one)
            self.rewards[one] = self._cumulative_rewards[one] = 0.0
            self.terminations[one] = self.truncations[one] = False
            self.infos[one] = {}
        living = [one for one in self.agents if not self.terminations[one] and not self.truncations[one]]
        self._new_states(living)
        for one in self.agents:
            self.rewards[one] = self._reward() if one in living and self._draw(0.5) else 0.0
            self._ledger.add(one, self.rewards[one])
        self._accumulate_rewards()
        for one in living:
            over, cut = self._ends()
            if over or cut:
                self.terminations[one], self.truncations[one] = over, cut
                self._ledger.end(one, self._states[one], over, cut)
        self._select()
        if self._deads_first:
            self._deads_step_first()

    def _select(self) -> None:
        """Select the next agent. The action that it took before is complete."""
        living = [one for one in self.agents if not self.terminations[one] and not self.truncations[one]]
        among = self.agents if not self._deads_first else living or self.agents
        self.agent_selection = among[self._rng.integers(len(among))]
        if self.agent_selection in living:
            self._ledger.end(self.agent_selection, self._states[self.agent_selection])


class ScriptedTogether(_Scripted, ParallelEnv):  # type: ignore[misc]
    """All living agents act at the same time."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents = [agent for agent in self.possible_agents if self._draw(0.8)] or self.possible_agents[:1]
        self._new_states(self.agents)
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert actions.keys() == set(self.agents)
        for agent, number in actions.items():
            self._ledger.begin(agent, number, self._states[agent])
        acted = list(self.agents)
        self._new_states(acted)
        rewards = {agent: self._reward() for agent in acted}
        ends = {agent: self._ends() for agent in acted}
        for agent in acted:
            self._ledger.add(agent, rewards[agent])
            self._ledger.end(agent, self._states[agent], *ends[agent])
        self.agents = [agent for agent in acted if not any(ends[agent])]
        coming = [agent for agent in self._coming() if agent not in acted] if self.agents else []
        self._new_states(coming)
        self.agents += coming
        overs, cuts = ({agent: ends[agent][which] for agent in acted} for which in (0, 1))
        return self._observations([*acted, *coming]), rewards, overs, cuts, {agent: {} for agent in acted}

    def _observations(self, agents: Sequence[str]) -> dict[str, State]:
        return {agent: self._states[agent] for agent in agents}
