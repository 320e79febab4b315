"""Copies of a PettingZoo environment: games in which a policy plays some agents, and random agents the others."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from relaax.client import EnvironmentFault
from relaax.client.connection.values import flag_of
from relaax.client.program.agents import RandomAgent
from relaax.rlx.action_masks import ACTION_MASK

logger = logging.getLogger("relaax.client")

MOST_GAMES = 1000
"""Games in a row in which the policy may have no decision to make."""
_STREAM = (2,)
"""Spawn key of a copy's random numbers. The environment and the agent use other streams of the same seed."""


Seats = Callable[[int], Mapping[Any, Any]]
"""A function that returns the rows (`rows.Row`) of the agents that the policy plays in a game, by its number."""


class Copy:
    """One environment. `reset` and `step` return when an agent that the policy plays wants an action.

    `number`: the index among the copies. An agent that is terminated or truncated leaves at once, also if the move of
    another agent is the reason. When all agents have left, the next game begins. `masked`: whether the agents' infos
    have an action mask, which is then added to their observations. `has_begun_game`: whether a game began in the last
    step.
    """

    def __init__(self, env: Any, seats: Seats, number: int, masked: bool) -> None:
        self.env = env
        self._seats, self._number, self._masked = seats, number, masked
        self.has_begun_game = False
        self._rows: Mapping[Any, Any] = {}
        self._playing: dict[Any, None] = {}  # agents of the policy whose episode is in progress
        self._seeds: Iterator[int | None] = itertools.repeat(None)
        self._opponents: dict[Any, Callable[[Any], Any]] = {}

    def reset(self, seed: int | None, number: int | None = None) -> None:
        """Begin a game. The seed determines all later games, too. `number`: of the game, by default the seed."""
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=_STREAM))
        self._opponents.clear()
        if seed is not None:
            self._number = seed if number is None else number
            self._seeds = itertools.chain([seed], (self._draw_seed() for _ in itertools.count()))
        self._begin()
        self._advance()

    def step(self) -> None:
        """Take the requested actions."""
        self.has_begun_game = False
        self._act()
        self._advance()

    def _act(self) -> None:
        raise NotImplementedError

    def _advance(self) -> None:
        """Let random agents act, and begin games, until the policy has a decision to make."""
        for _ in range(MOST_GAMES):
            if self._play():
                return
            self._begin()
        raise EnvironmentFault(f"{MOST_GAMES:,} games ended without an action of {', '.join(map(str, self._rows))}")

    def _play(self) -> bool:
        """Return whether the policy has a decision to make; False at the end of the game."""
        raise NotImplementedError

    def _start(self, seed: int | None) -> None:
        raise NotImplementedError

    def _begin(self) -> None:
        self.has_begun_game = True
        self._rows = self._seats(self._number)
        self._number += 1
        self._playing.clear()
        self._start(next(self._seeds))

    def _request(self, agent: Any, state: Any, reward: Any, info: Mapping[str, Any]) -> None:
        """Request an action of an agent that the policy plays. The reward of its first action is not counted."""
        self._rows[agent].act(agent, self._state(agent, state, info), reward if agent in self._playing else 0.0, info)
        self._playing[agent] = None

    def _leave(self, agent: Any, state: Any, reward: Any, flags: tuple[Any, Any], info: Mapping[str, Any]) -> None:
        """End the episode of an agent that the policy plays. Raises EnvironmentFault if both flags are false."""
        del self._playing[agent]
        try:
            over, cut = flag_of("terminated", flags[0]), flag_of("truncated", flags[1])
        except ValueError as error:
            raise EnvironmentFault(f"agent {agent}: {error}") from None
        if not over and not cut:
            raise EnvironmentFault(
                f"agent {agent} has disappeared: mark its end in terminations or truncations before removing it"
            )
        self._rows[agent].end(agent, self._state(agent, state, info), reward, (over, cut), info)

    def _state(self, agent: Any, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return the observation, with the mask of the infos if there is one. Without a mask, all actions are valid."""
        if not self._masked or observation is None:
            return observation
        mask = info.get(ACTION_MASK)
        if mask is None:
            mask = np.ones(self.env.action_space(agent).n, np.int8)
        return {"observation": observation, ACTION_MASK: np.asarray(mask, np.int8)}

    def _draw(self, agent: Any, observation: Any, info: Mapping[str, Any]) -> Any:
        """Return a random, valid action of an agent that the policy does not play."""
        draw = self._opponents.get(agent)
        if draw is None:
            spaces = observation_space(self.env, agent, self._masked), self.env.action_space(agent)
            draw = self._opponents[agent] = _random_policy(*spaces, self._draw_seed())
        return draw(self._state(agent, observation, info))

    def _draw_seed(self) -> int:
        return int(self._rng.integers(2**31))


class TurnsCopy(Copy):
    """A copy whose agents act one at a time (AEC)."""

    def __init__(self, env: Any, seats: Seats, number: int, masked: bool) -> None:
        super().__init__(env, seats, number, masked)
        self._game = _without_wrappers(env)
        self._reported: dict[Any, float] = {}  # rewards of agents that have left before the environment removed them
        self._has_warned = False

    def _act(self) -> None:
        self._take(self._rows[self._game.agent_selection].action())

    def _start(self, seed: int | None) -> None:
        self._reported.clear()
        self.env.reset(seed=seed)

    def _play(self) -> bool:
        env, game = self.env, self._game
        while game.agents:
            agent = game.agent_selection
            if game.terminations[agent] or game.truncations[agent]:
                self._check_late_reward(agent, game._cumulative_rewards[agent])
                env.step(None)
                continue
            observation, info = env.observe(agent), game.infos.get(agent, {})
            if agent in self._rows:
                self._request(agent, observation, game._cumulative_rewards[agent], info)
                return True
            self._take(self._draw(agent, observation, info))
        return False

    def _take(self, action: Any) -> None:
        """Step the environment. Then the agents leave whose episodes have ended."""
        self.env.step(action)
        game = self._game
        for agent in list(self._playing):
            flags = game.terminations.get(agent, False), game.truncations.get(agent, False)
            if any(flags) or agent not in game.agents:
                reward = self._reported[agent] = game._cumulative_rewards.get(agent, 0.0)
                self._leave(agent, self.env.observe(agent), reward, flags, game.infos.get(agent, {}))

    def _check_late_reward(self, agent: Any, reward: float) -> None:
        reported = self._reported.pop(agent, reward)
        if reported != reward and not self._has_warned:
            self._has_warned = True
            logger.warning("agent %s got a reward after its end, which is not sent: %g", agent, reward - reported)


class TogetherCopy(Copy):
    """A copy whose agents act at the same time (Parallel)."""

    def __init__(self, env: Any, seats: Seats, number: int, masked: bool) -> None:
        super().__init__(env, seats, number, masked)
        self._observations: Mapping[Any, Any] = {}
        self._rewards: Mapping[Any, Any] = {}
        self._infos: Mapping[Any, Mapping[str, Any]] = {}
        self._ended: set[Any] = set()  # agents that the environment still lists

    def _start(self, seed: int | None) -> None:
        self._ended.clear()
        self._rewards = {}
        self._observations, self._infos = self.env.reset(seed=seed)

    def _live(self) -> list[Any]:
        return [agent for agent in self.env.agents if agent not in self._ended]

    def _play(self) -> bool:
        while live := self._live():
            wanted = [agent for agent in live if agent in self._rows]
            for agent in wanted:
                self._request(agent, self._observations[agent], self._reward(agent), self._infos.get(agent, {}))
            if wanted:
                return True
            self._act()
        return False

    def _act(self) -> None:
        """Step the environment. Then the agents leave whose episodes have ended."""
        actions = {
            agent: self._rows[agent].action()
            if agent in self._rows
            else self._draw(agent, self._observations[agent], self._infos.get(agent, {}))
            for agent in self._live()
        }
        self._observations, self._rewards, overs, cuts, self._infos = self.env.step(actions)
        gone = {agent for agent in actions if overs.get(agent) or cuts.get(agent)}
        for agent in list(self._playing):
            if agent in gone or agent not in self.env.agents:
                flags = overs.get(agent, False), cuts.get(agent, False)
                info = self._infos.get(agent, {})
                self._leave(agent, self._observations.get(agent), self._reward(agent), flags, info)
        self._ended = (self._ended | gone) & set(self.env.agents)

    def _reward(self, agent: Any) -> Any:
        return self._rewards.get(agent, 0.0)


def copies_of(envs: Sequence[Any], seats: Sequence[Seats], masked: bool) -> list[Copy]:
    """Return the copies with these environments. `seats`: of each copy."""
    kind = TogetherCopy if is_parallel(envs[0]) else TurnsCopy
    return [kind(env, seat, i, masked) for i, (env, seat) in enumerate(zip(envs, seats, strict=True))]


def fixed(rows: Mapping[Any, Any]) -> Seats:
    """Return seats with the same rows in every game."""
    return lambda number: rows


def alternating(agents: Sequence[Any], row: Any) -> Seats:
    """Return seats in which the policy plays one agent, another one in each game."""
    return lambda number: {agents[number % len(agents)]: row}


def observation_space(env: Any, agent: Any, masked: bool) -> Any:
    """Return the observation space of an agent. `masked`: with the mask of its infos."""
    space = env.observation_space(agent)
    if not masked:
        return space
    return Dict({"observation": space, ACTION_MASK: Box(0, 1, (env.action_space(agent).n,), np.int8)})


def _random_policy(observation_space: Any, action_space: Any, seed: int) -> Callable[[Any], Any]:
    """Return a function that draws a valid action for an observation."""
    agent = RandomAgent(observation_space, action_space, None, seed)
    if not isinstance(action_space, Discrete) or not agent.masked:
        return agent.init
    rng, start = np.random.default_rng(seed), int(action_space.start)

    def draw(observation: Any) -> int:
        """Draw as RandomAgent does, in a tenth of its time."""
        valid = np.flatnonzero(observation[ACTION_MASK])
        return start + int(valid[rng.integers(len(valid))] if len(valid) else rng.integers(action_space.n))

    return draw


def _without_wrappers(env: Any) -> Any:
    """Return the environment inside PettingZoo's own wrappers, for reading: each wrapper slows down attributes."""
    while type(env).__module__.startswith("pettingzoo.utils.wrappers."):
        env = env.env
    return env


def is_parallel(env: Any) -> bool:
    """Return whether the agents act at the same time (Parallel), not one at a time (AEC)."""
    return not hasattr(env, "last")


def is_masked(env: Any, agents: Sequence[Any]) -> bool:
    """Return whether the infos of the first agent, after a reset, have an action mask."""
    found = env.reset()
    infos = found[1] if is_parallel(env) else env.infos
    return isinstance(env.action_space(agents[0]), Discrete) and ACTION_MASK in (infos.get(agents[0]) or {})
