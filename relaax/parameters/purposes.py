"""The purposes for which a process registers with the parameter server, and what each may do there.

All code that asks what a registered process may do reads this one table. A further purpose is a row here and a number
in the `Role` of `parameter_server.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a registered process is there for."""

    name: str
    """The name in messages: `an exploit worker`."""
    mode: str
    """The same in one word, for tables."""
    number: int
    """Its `Role` in `parameter_server.proto`."""
    acts: bool
    """Whether it has environments, and so actor indices."""
    changes: bool
    """Whether it may change anything: push, gather statistics, update shared memory."""
    outlives_training: bool
    """Whether a server that started with a finished model serves it for ever: it wants to act with this model."""

    @property
    def trains(self) -> bool:
        """Whether its environments are actors of the training."""
        return self.acts and self.changes


TRAIN = Purpose("a training worker", "train", 1, acts=True, changes=True, outlives_training=False)
EXPLOIT = Purpose("an exploit worker", "exploit", 2, acts=True, changes=False, outlives_training=True)
LEARN = Purpose("a learner", "learn", 3, acts=False, changes=True, outlives_training=False)

PURPOSES = {purpose.number: purpose for purpose in (TRAIN, EXPLOIT, LEARN)}
"""All purposes by number."""
