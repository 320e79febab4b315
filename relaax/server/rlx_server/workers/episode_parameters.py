"""The parameters of the environments of one connection: drawn for each episode, and sent before it begins. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from relaax import rlx
from relaax.lessons.values import Draw, Drawn, Edition, draw

if TYPE_CHECKING:
    from relaax.lessons.values import Numbers

Mask = npt.NDArray[np.bool_]


class EpisodeParameters:
    """The parameters of N environments, for their episodes in progress and for their next episodes.

    An environment begins an episode with the numbers that its client received last. So the numbers of the next episode
    are drawn and sent when an episode has begun, and drawn again if the edition changes meanwhile. If a restarted
    parameter server has other names, the last edition with the names of the welcome remains.
    """

    def __init__(self, edition: Callable[[], Edition | None], seed: int, joined: int, actors: Sequence[int]) -> None:
        """Draw the numbers of the first episodes. For `seed`, `joined` and `actors` see `Draw`.

        `edition`: returns the newest edition; None if there are no parameters.
        """
        self._edition_of = edition
        self._edition = edition()
        self._draws = [Draw(seed, joined, actor, 0) for actor in actors]
        self._next = [self._drawn(index) for index in range(len(actors))]
        self._current: list[Drawn | None] = [None] * len(actors)
        self._to_send: set[int] = set()
        self.renamed = False
        """Whether the newest edition has other names. The client must reconnect to get them."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the parameters, for the welcome."""
        return () if self._edition is None else self._edition.names

    def first(self) -> Numbers | None:
        """Return the numbers of the first episodes, for the welcome: float64 [N x P]; None without parameters."""
        return np.concatenate([drawn.numbers for drawn in self._next if drawn]) if self.names else None

    def begin(self, started: Mask, unknown: Mask | None = None) -> None:
        """Begin an episode where `started`, bool [N]. Where `unknown`, it has other numbers than those sent last."""
        for index in np.flatnonzero(started).tolist():
            self._current[index] = None if unknown is not None and unknown[index] else self._next[index]
            before = self._draws[index]
            self._draws[index] = Draw(before.seed, before.joined, before.actor, before.number + 1)
            self._next[index] = self._drawn(index)
            self._to_send.add(index)

    def of(self, environment: int) -> Drawn | None:
        """Return the numbers of an environment's episode in progress or ended last; None if they are not known."""
        return self._current[environment]

    def add_to(self, answer: rlx.Actions) -> None:
        """Add the numbers of next episodes to an answer, where the client does not have them yet."""
        edition = self._edition_of()
        self.renamed = edition is not self._edition and (edition.names if edition else ()) != self.names
        if edition is not self._edition and not self.renamed:
            self._edition = edition
            self._next = [self._drawn(index) for index in range(len(self._draws))]
            self._to_send.update(range(len(self._draws)))
        if self._to_send and self.names:
            answer.parameters_of = tuple(sorted(self._to_send))
            drawn = [self._next[index] for index in answer.parameters_of]
            answer.parameters = np.concatenate([each.numbers for each in drawn if each])
        self._to_send.clear()

    def _drawn(self, index: int) -> Drawn | None:
        edition, of = self._edition, self._draws[index]
        return None if edition is None else Drawn(of, edition.number, draw(edition.values, of))
