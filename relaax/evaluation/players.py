"""A player that acts by a policy, or at random."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from relaax import rlx
from relaax.client.connection.failure import Failure
from relaax.client.program.agents import Game, RandomAgent
from relaax.evaluation.result import Played
from relaax.policy import Policy, PolicyError

SECONDS_PER_REPORT = 1.0


class EvaluationPlayer:
    """Plays the games that `next_game` gives, until it gives None, and tells `tell` what each was.

    `policy` None acts at random. What is drawn in an episode begins with that episode's seed: so an episode is the same
    whichever were played before it. `known`: told of the number of frames per step, once the environment is there.
    `under_way`: told of an episode's number and steps, once a second.
    """

    def __init__(
        self,
        policy: Policy | None,
        next_game: Callable[[], Game | None],
        tell: Callable[[Played], None],
        known: Callable[[int], None],
        under_way: Callable[[int, int], None],
    ) -> None:
        self._policy, self._next_game, self._tell, self._known = policy, next_game, tell, known
        self._action_space: rlx.Space | None = None
        self._random: RandomAgent | None = None
        self._under_way = under_way
        self._game = Game(0, 0)
        self._steps = 0
        self._next_report = time.monotonic() + SECONDS_PER_REPORT

    def meet(self, observation_space: rlx.Space, action_space: rlx.Space, frame_skip: int) -> None:
        """Take note of the environment. Raises Failure if the policy was trained on other spaces."""
        self._action_space = action_space
        if self._policy is not None:
            for what, here, trained in (
                ("observations", observation_space, self._policy.observation_space),
                ("actions", action_space, self._policy.action_space),
            ):
                if not _alike(here, trained):
                    raise Failure(
                        f"the environment's {what} are {here}, and the policy was trained on {trained}",
                        rlx.ErrorCode.SPACE_MISMATCH,
                    )
        self._known(frame_skip)

    def games(self) -> Iterator[Game]:
        """Return the games, each after the one before was told."""
        while (game := self._next_game()) is not None:
            self._game = game
            yield game

    def act(self, observation: Any, first: bool) -> Any:
        """Return the action. Raises Failure if the observation does not fit."""
        self._count(first)
        if self._policy is None:
            if first or self._random is None:
                self._random = RandomAgent(self._action_space, None, self._game.seed)
            return self._random.init(observation)
        try:
            if first:
                self._policy.reset(seed=self._game.seed)
            return self._policy.act(observation)
        except PolicyError as error:
            raise Failure(str(error)) from None

    def ended(self, game: Game, episode: rlx.Episode, steps: int, cut: bool) -> None:
        """Tell what the episode was."""
        self._tell(Played(game.number, episode.episode_return, episode.length, steps, cut))

    def _count(self, first: bool) -> None:
        self._steps = 0 if first else self._steps + 1
        if (now := time.monotonic()) >= self._next_report:
            self._next_report = now + SECONDS_PER_REPORT
            self._under_way(self._game.number, self._steps)


def _alike(one: rlx.Space, other: rlx.Space) -> bool:
    """Return whether values of one space are values of the other, bounds apart: a trained space has none."""
    return len(list(one.elements())) == len(list(other.elements())) and all(
        type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype and getattr(a, "n", 0) == getattr(b, "n", 0)
        for a, b in zip(one.elements(), other.elements(), strict=True)
    )
