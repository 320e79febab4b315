"""A worker's wait for the synchronous updates of its pushes."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from relaax.backoff import Pauses
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Calls
from relaax.parameters.interfaces import TrainingEnded
from relaax.parameters.received import Answer, IncarnationEnded
from relaax.parameters.shard_client import ShardClient
from relaax.transport.long_messages import Carrier

_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1
"""Seconds between two requests to a shard that answers at once, because too many workers wait."""


class UpdateWaits:
    """The waits of one worker for the updates that its pushes belong to, which other workers complete."""

    def __init__(self, links: Sequence[ShardClient], call: Calls) -> None:
        self._links = links
        self._call = call
        self._ended: float | None = None  # the last wait

    def await_updates(
        self, pushed: Sequence[Carrier[pb.PushResponse]], identity: pb.PullRequest
    ) -> tuple[list[Answer], float | None]:
        """Wait until each shard has applied the update of a push. Return answers with the new parameters.

        Also return the fraction of the time since the last update that this wait took; None for the first one.

        Each shard waits for other workers for a bounded time. If the gradient was too old for only some shards, or the
        wait is long, the others are asked for a newer version too: they do not wait for this worker meanwhile, or two
        workers could wait for each other. Raises IncarnationEnded and TrainingEnded, and the errors of the calls.
        """
        began = time.monotonic()
        answers: list[Answer] = list(pushed)
        pending = {shard for shard, answer in enumerate(pushed) if answer.message.pending}
        asked = pending | {shard for shard, answer in enumerate(pushed) if answer.message.discard}
        suspended: set[int] = set()
        pauses = Pauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        while pending:
            started = time.monotonic()
            suspended |= asked - pending
            pending -= self._pull(answers, asked, identity)
            asked = set(range(len(self._links)))
            if pending and time.monotonic() - started < _LONGEST_PAUSE:
                time.sleep(pauses.next())
        if suspended:
            self._pull(answers, suspended, identity, wait=False)
        now, ended = time.monotonic(), self._ended
        self._ended = now
        return answers, None if ended is None else (now - began) / (now - ended)

    def _pull(
        self, answers: list[Answer], shards: Collection[int], identity: pb.PullRequest, wait: bool = True
    ) -> set[int]:
        """Replace the answers of these shards by newer ones. Return the shards that have a newer version.

        `wait`: let each shard wait for a newer version, up to a second.
        """
        calls = []
        for shard in shards:
            link, version = self._links[shard], answers[shard].message.version
            calls.append(link.pull(identity, link.version, version if wait else None))
        newer = set()
        pulled: list[Carrier[pb.PullResponse]] = self._call(calls)
        for shard, answer in zip(shards, pulled, strict=True):
            message = answer.message
            if message.incarnation_ended:
                raise IncarnationEnded
            if message.finished:
                raise TrainingEnded(message.global_step)
            if message.version > answers[shard].message.version:
                answers[shard] = answer
                newer.add(shard)
        return newer
