"""An environment's program with a player inside: `python -m relaax.evaluation.program FD OPTIONS MAIN [ARG ...]`.

FD is a socket to the process that evaluates. OPTIONS are the arguments of `relaax.policy.load` as JSON, or `null` for
random actions. Each message is a line of JSON. This process sends:

- `{"frame_skip": 4}` once.
- `{"next": true}` to request an episode. The reply is `{"number": 0, "seed": 1, "max_steps": 1000, "parameters": {}}`,
  or `null` if all episodes are assigned.
- `{"playing": 0, "steps": 12}` once a second.
- the fields of `Played` at the end of an episode.
"""

from __future__ import annotations

import json
import runpy
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from relaax import rlx
from relaax.client.connection.failure import Failure
from relaax.client.program.agents import Game, RandomAgent, playing
from relaax.console import print_error
from relaax.evaluation.playing import Played
from relaax.policy import Policy, PolicyError, load
from relaax.rlx.spaces import is_compatible

SECONDS_PER_REPORT = 1.0
USAGE = 2


class EvaluationPlayer:
    """A player of the episodes that the process at the other end of `lines` assigns.

    Without a policy, actions are random. Each episode has a random stream of its own seed, so it does not depend on the
    episodes before it.
    """

    def __init__(self, options: Mapping[str, Any] | None, lines: TextIO) -> None:
        """`options`: arguments of `relaax.policy.load`; None for random actions. Raises PolicyError."""
        self._options, self._lines = options, lines
        self._policy = None if options is None else load(**options)
        self._more: dict[int, Policy] = {}
        """The policies of other agents in the same game than the first: each has a state of its own."""
        self._spaces: tuple[rlx.Space, rlx.Space] | None = None
        self._random: dict[int, RandomAgent] = {}
        self._seeded: set[int] = set()  # places of policies that have the seed of the game
        self._game = Game(0, 0)
        self._steps = 0
        self._next_report = time.monotonic() + SECONDS_PER_REPORT

    def set_environment(self, observation_space: rlx.Space, action_space: rlx.Space, frame_skip: int) -> None:
        """Store the environment's spaces. Raises Failure if the policy was trained on other spaces."""
        self._spaces = observation_space, action_space
        if self._policy is not None:
            for what, here, trained in (
                ("observations", observation_space, self._policy.observation_space),
                ("actions", action_space, self._policy.action_space),
            ):
                if not is_compatible(here, trained):
                    raise Failure(
                        f"the environment's {what} are {here}, but the policy was trained on {trained}",
                        rlx.ErrorCode.SPACE_MISMATCH,
                    )
        self._send({"frame_skip": frame_skip})

    def games(self) -> Iterator[Game]:
        """Yield the episodes to play. Request each one after the outcome of the last one was sent."""
        while True:
            self._send({"next": True})
            answer = json.loads(self._lines.readline() or "null")
            if answer is None:
                return
            self._game, self._steps = Game(**answer), 0
            self._random.clear()
            self._seeded.clear()
            yield self._game

    def act(self, observation: Any, first: bool, place: int) -> Any:
        """Return the action. Raises Failure if the observation does not fit."""
        self._count()
        seed = self._game.seed + place
        if self._options is None:
            if place not in self._random:
                assert self._spaces is not None, "set_environment precedes act"
                self._random[place] = RandomAgent(*self._spaces, None, seed)
            return self._random[place].init(observation)
        policy = self._policy_of(place)
        try:
            if first:  # also after each lost life, if lives are episodes
                policy.reset(seed=None if place in self._seeded else seed)
                self._seeded.add(place)
            return policy.act(observation)
        except PolicyError as error:
            raise Failure(str(error)) from None

    def _policy_of(self, place: int) -> Policy:
        assert self._options is not None and self._policy is not None
        if place == 0:
            return self._policy
        if place not in self._more:
            self._more[place] = load(**self._options)
        return self._more[place]

    def record_game(self, game: Game, episode: rlx.Episode, steps: int, cut: bool) -> None:
        """Send the outcome of an episode."""
        self._send(asdict(Played(game.number, episode.episode_return, episode.length, steps, cut)))

    def _count(self) -> None:
        self._steps += 1
        if (now := time.monotonic()) >= self._next_report:
            self._next_report = now + SECONDS_PER_REPORT
            self._send({"playing": self._game.number, "steps": self._steps})

    def _send(self, message: Any) -> None:
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()


def main() -> None:
    """Run the program MAIN with its arguments and a player inside."""
    descriptor, options, program, *arguments = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection, connection.makefile("rw", encoding="utf-8") as lines:
        try:
            player = EvaluationPlayer(json.loads(options), lines)
        except PolicyError as error:
            print_error("relaax eval", error)
            sys.exit(USAGE)
        sys.argv = [program, *arguments]
        sys.path[0] = str(Path(program).parent)  # as if MAIN were run directly
        with playing(player):
            runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
