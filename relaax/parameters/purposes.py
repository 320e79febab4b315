"""The purposes for which a process registers with the parameter server, and what each may do there.

All code that asks what a registered process may do reads this one table. A learner or an evaluator is a row here and a
number in the `Role` of `parameter_server.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a registered process is there for."""

    name: str
    """The name in messages: `an exploit worker`."""
    number: int
    """Its `Role` in `parameter_server.proto`."""
    changes: bool
    """Whether it may change anything: push, gather statistics, update shared memory."""
    outlives_training: bool
    """Whether a server that started with a finished model serves it for ever: it wants to act with this model."""


TRAIN = Purpose("a training worker", 1, changes=True, outlives_training=False)
EXPLOIT = Purpose("an exploit worker", 2, changes=False, outlives_training=True)

PURPOSES = {purpose.number: purpose for purpose in (TRAIN, EXPLOIT)}
"""All purposes by number."""
