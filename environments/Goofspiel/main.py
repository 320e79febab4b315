#!/usr/bin/env python3
"""Play the card game Goofspiel against an RLX server: `main HOST:PORT NAME [N]`.

It shows action masks: the agent may only bid the cards that it still has. It needs only relaax.client and numpy. N
games share one connection.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from relaax.client import Box, Dict, Discrete, RunSummary, Worlds, command, run

CARDS = 13  # in each hand, and prizes


class Goofspiel:
    """Goofspiel (Ross 1971) against an opponent that bids at random.

    Both players have the cards 1 to 13. In each of 13 rounds a prize of 1 to 13 points is turned over, and both bid a
    card. The higher bid wins the prize, equal bids win nothing, and both cards are out of the game. At the end, the
    player with more points wins: the reward is 1 for a win, -1 for a defeat, 0 for a draw, and 0 before.
    """

    observation_space = Dict(
        {
            "action_mask": Box(0, 1, shape=(CARDS,), dtype="int8"),  # the own cards
            "opponent": Box(0, 1, shape=(CARDS,)),  # its cards
            "prize": Box(0, 1, shape=(CARDS,)),  # 1 for the prize of this round
            "prizes": Box(0, 1, shape=(CARDS,)),  # 1 for the later ones
            "cards": Box(0, 1, shape=(CARDS,)),  # the own cards: the mask is no input of the network
            "lead": Box(-1, 1, shape=(1,)),  # in points, divided by all points
        }
    )
    action_space = Discrete(CARDS)  # bid card 1, ..., 13

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def restart(self) -> Any:
        """Deal the cards, and turn over the first prize."""
        self._own, self._opponent = np.ones((2, CARDS), np.bool_)
        self._prizes = self._rng.permutation(CARDS).tolist()
        self._lead = 0
        return self._observe()

    def do(self, action: int) -> tuple[Any, float, bool, bool]:
        """Bid a card. Return the next observation, the reward, whether terminated, and whether truncated."""
        if not self._own[action]:
            raise ValueError(f"card {action + 1} was bid before")
        answer = self._rng.choice(np.flatnonzero(self._opponent))
        self._own[action] = self._opponent[answer] = False
        self._lead += (self._prizes.pop(0) + 1) * int(np.sign(action - answer))
        over = not self._prizes
        return self._observe(), float(np.sign(self._lead)) if over else 0.0, over, False

    def _observe(self) -> dict[str, Any]:
        prizes = np.zeros((2, CARDS), np.float32)
        prizes[0, self._prizes[:1]] = prizes[1, self._prizes[1:]] = 1
        return {
            "action_mask": self._own.astype(np.int8),
            "opponent": self._opponent.astype(np.float32),
            "prize": prizes[0],
            "prizes": prizes[1],
            "cards": self._own.astype(np.float32),
            "lead": np.array([2 * self._lead / (CARDS * (CARDS + 1))], np.float32),
        }


def main(arguments: argparse.Namespace) -> RunSummary:
    """Deal the games, and let the server's agents play them until training ends."""
    settings = command.settings(arguments)
    games = Worlds(Goofspiel, arguments.environments, arguments.seed)
    return run(games, environment=arguments.name, **settings)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    return command.parser("Goofspiel/main", "Play Goofspiel against random bids.", "a name for the logs")


if __name__ == "__main__":
    command.execute(parser(), main)
