"""Ratings of a training that plays against its own checkpoints: the share of games that it wins, and Elo."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

INITIAL = 1200.0
"""Rating of a training at its start, as in ML-Agents."""
SWING = 4.0
"""The K factor: the most points that one game can change. Small, because there are thousands of games."""
SPREAD = 400.0
"""With this lead in points, ten games are won for each that is lost."""
GAMES = 500
"""Number of games of the win rate."""


class OpponentRatings:
    """The win rate of the policy in training against its checkpoints, and the ratings of both sides. Thread-safe.

    `keep`: number of opponents. As games may last, twice as many ratings are kept. `every`: global steps between them.
    """

    def __init__(self, keep: int, every: int) -> None:
        self._keep, self._every = 2 * keep, every
        self._newest = 0  # global step of the newest opponent
        self._lock = threading.Lock()
        self._rating = INITIAL
        self._opponents: dict[str, float] = {}  # by checkpoint id, oldest first
        self._scores: deque[float] = deque(maxlen=GAMES)

    @property
    def rating(self) -> float:
        """Rating of the policy in training."""
        return self._rating

    @property
    def win_rate(self) -> float | None:
        """Share of the last games that the policy won, a draw counted as half; None before the first."""
        with self._lock:
            return sum(self._scores) / len(self._scores) if self._scores else None

    def of(self, checkpoint_id: str) -> float | None:
        """Return the rating of a checkpoint; None if it is not known."""
        return self._opponents.get(checkpoint_id)

    def add_checkpoint(self, checkpoint_id: str, global_step: int) -> None:
        """Rate a new checkpoint like the policy, if it is the first at or after a multiple of `every`."""
        with self._lock:
            if global_step // self._every > self._newest // self._every:
                self._newest = global_step
                self._opponents[checkpoint_id] = self._rating
                self._drop_oldest()

    def record(self, games: Iterable[tuple[str, float]]) -> None:
        """Count games, as (the opponent's checkpoint id, its return). Its return is above 0 if it has won.

        A checkpoint without a known rating counts as rated like the policy.
        """
        with self._lock:
            for checkpoint_id, episode_return in games:
                score = 0.5 if episode_return == 0 else float(episode_return < 0)
                known = self._opponents.get(checkpoint_id)
                points = SWING * (score - expected_score(self._rating, self._rating if known is None else known))
                self._rating += points
                if known is not None:
                    self._opponents[checkpoint_id] = known - points
                self._scores.append(score)

    def as_json(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        with self._lock:
            return {
                "rating": self._rating,
                "newest": self._newest,
                "checkpoints": [[name, rating] for name, rating in self._opponents.items()],  # JSON sorts an object
                "scores": list(self._scores),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `as_json` returned. Raises ValueError and the like."""
        opponents = {str(name): float(rating) for name, rating in state["checkpoints"]}
        rating, newest = float(state["rating"]), int(state["newest"])
        scores = [float(score) for score in state["scores"]]
        if not all(0 <= score <= 1 for score in scores):
            raise ValueError("scores must be from 0 to 1")
        with self._lock:
            self._rating, self._newest, self._opponents = rating, newest, opponents
            self._scores = deque(scores, maxlen=GAMES)
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        for name in list(self._opponents)[: -self._keep]:
            del self._opponents[name]


def expected_score(rating: float, other: float) -> float:
    """Return the expected score, from 0 to 1, of a side with this rating against another one (Elo 1978)."""
    difference = min(max(other - rating, -10 * SPREAD), 10 * SPREAD)
    return float(1 / (1 + 10 ** (difference / SPREAD)))
