"""The moment at which no shard applies an update: all take their snapshots of it."""

from __future__ import annotations

from relaax.server.parameter_server.checkpointing import Late, ModelState
from relaax.server.parameter_server.coordination import coordination_pb2 as pb
from relaax.server.parameter_server.coordination.introduction import HOLD
from relaax.server.parameter_server.coordination.member import ShardLost
from relaax.server.parameter_server.coordination.members import Members
from relaax.server.parameter_server.core import ParameterServerCore

PREPARE = 10.0
"""Seconds that a shard may take to get the memory of its snapshot."""
LAST_HOLD = 30.0
"""Seconds that a shard may take to stop for the last checkpoint, when nobody waits for it to go on."""


class Barrier:
    """What shard 0 does for a cut, itself and through the other shards. For one thread at a time."""

    def __init__(self, core: ParameterServerCore, members: Members) -> None:
        self._core = core
        self._members = members
        self.number = 0
        """Of the cut that was tried last."""

    def is_news(self, saved: tuple[object, ...]) -> bool:
        """Whether there is more than these states, of all shards. Holds nobody, copies nothing. Raises ShardLost."""
        mark = self._core.mark()
        if mark is None or (mark,) != saved[:1]:
            return True
        answers = self._members.ask(PREPARE, prepare=pb.Prepare())
        return (mark, *(answer.state for answer in answers)) != saved

    def prepare(self) -> None:
        """Have all shards get the memory of their snapshots, while nobody waits for them. Raises ShardLost.

        It is as much as they have themselves, so they have it from here to the end of the checkpoint only.
        """
        try:
            self._members.ask(PREPARE, prepare=pb.Prepare(memory=True))
        except ShardLost:
            for member in self._members.all():
                member.ask(prepare=pb.Prepare())
            raise
        self._core.prepare()

    def take(self, closing: str) -> tuple[ModelState | None, list[pb.Answer]]:
        """Its own state and the answers of the others, all of one moment. Raises ShardLost and Late.

        `closing`: why nobody goes on afterwards; empty where all do.
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
            for member in members:  # whoever has joined since is to stay closed until all return to a checkpoint
                member.ask(resume=pb.Resume())
            raise
        finally:
            unbroken &= access.release()
        if not unbroken or any(answer.failure for answer in resumed):
            raise Late("the barrier between the shards took too long")
        return state, answers
