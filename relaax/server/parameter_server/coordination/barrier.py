"""The barrier between shards: a moment without updates, at which all take their snapshots."""

from __future__ import annotations

from relaax.server.checkpoints.checkpointing import Late, ModelState
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination.introduction import HOLD
from relaax.server.parameter_server.coordination.member import ShardLost
from relaax.server.parameter_server.coordination.members import Members
from relaax.server.parameter_server.core import ParameterServerCore

PREPARE = 10.0
"""Seconds that a shard may take to allocate the memory of its snapshot."""
LAST_HOLD = 30.0
"""Seconds that a shard may take to stop for the last checkpoint, when no worker waits."""


class Barrier:
    """Take a cut of all shards: shard 0's own part and, through orders, the others'. For one thread at a time."""

    def __init__(self, core: ParameterServerCore, members: Members) -> None:
        self._core = core
        self._members = members
        self.number = 0
        """The number of the last attempted cut."""

    def is_news(self, saved: tuple[object, ...]) -> bool:
        """Return whether any shard has changed since the states `saved`, without a hold or a copy. Raises ShardLost."""
        mark = self._core.mark()
        if mark is None or (mark,) != saved[:1]:
            return True
        answers = self._members.ask(PREPARE, prepare=pb.Prepare())
        return (mark, *(answer.state for answer in answers)) != saved

    def prepare(self) -> None:
        """Make all shards allocate memory for their snapshots, before updates are held. Raises ShardLost.

        It is as large as the shard itself, so it is held only until the end of the checkpoint.
        """
        try:
            self._members.ask(PREPARE, prepare=pb.Prepare(memory=True))
        except ShardLost:
            for member in self._members.all():
                member.ask(prepare=pb.Prepare())
            raise
        self._core.prepare()

    def take(self, closing: str) -> tuple[ModelState | None, list[pb.Answer]]:
        """Return shard 0's state and the others' answers, all of one moment. Raises ShardLost and Late.

        `closing`: why updates stop for good; empty if they resume.
        """
        self.number += 1
        members = self._members.all()
        hold = pb.Hold(cut=self.number, sentence=closing)
        if closing:
            return self._core.state(), self._members.ask(LAST_HOLD, members, hold=hold)
        access = self._core.access
        unbroken = access.hold(HOLD)
        try:
            answers = self._members.ask(HOLD, members, hold=hold)
            state = self._core.state()
            resumed = self._members.ask(HOLD, members, resume=pb.Resume())
        except ShardLost:
            for member in members:  # a shard that has joined since stays closed until all return to a checkpoint
                member.ask(resume=pb.Resume())
            raise
        finally:
            unbroken &= access.release()
        if not unbroken or any(answer.failure for answer in resumed):
            raise Late("the barrier between the shards took too long")
        return state, answers
