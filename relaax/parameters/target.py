"""The target network as a worker has it, from all shards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Calls
from relaax.parameters.interfaces import FlatVector, ParameterServerUnavailable, TrainingEnded
from relaax.parameters.shard_client import ShardClient
from relaax.parameters.wire import Carrier

_AT_ONCE = 3
_VECTOR = "target"
_Answers = Sequence[pb.PushResponse] | Sequence[pb.PullResponse]


class IncarnationEnded(Exception):
    """The worker belongs to an earlier incarnation, or is unknown: it has to register again."""


class _Apart(Exception):
    """A shard is behind shard 0."""


class ReceivedTarget:
    """The newest generation that all shards have; the same array until there is a newer one."""

    def __init__(self, links: Sequence[ShardClient], call: Calls) -> None:
        self._links = links
        self._call = call
        self.begin(wanted=False)

    def begin(self, *, wanted: bool) -> None:
        """Begin anew, for a registration: another incarnation has other generations. `wanted`: the worker trains."""
        self.vector: FlatVector | None = None
        """float32 [P], read-only; None before the first, if it is not wanted, and if there is none."""
        self.newest = 0
        """The newest generation of shard 0, which every request tells the other shards."""
        self._wanted = wanted
        self._held: int | None = None  # the generation of `vector`
        self._parts: dict[int, tuple[int, FlatVector]] = {}  # of each shard: its generation, and its range

    def hear(self, answers: _Answers) -> bool:
        """Note the generation of shard 0, whose answer is the first. Return whether it is another than is held here.

        Those of the other shards do not count: any worker can advance them.
        """
        if not answers[0].HasField("target_generation"):
            return False
        generation = answers[0].target_generation
        self.newest = max(self.newest, generation)
        return generation != self._held

    def follow(self, answers: _Answers, asker: pb.PullRequest) -> FlatVector | None:
        """Return the target network, fetched if the shards have another one now. Raises as `fetch` does."""
        if self.hear(answers) and self._wanted:
            self.fetch(asker)
        return self.vector

    def fetch(self, asker: pb.PullRequest) -> None:
        """Take the target network from all shards, of one generation. `asker` says who asks.

        Shards that are behind copy when a request names the newest generation. If shard 0 advances meanwhile, they are
        asked again. If a shard stays ahead of shard 0, a worker has told it a false generation, and its copy is used
        until shard 0 has advanced as far. Raises IncarnationEnded, TrainingEnded, ParameterServerUnavailable after the
        bounded wait, and ParameterServerError.
        """
        try:
            self._call.retrying(_Apart)(self._fetch_at_once, asker)
        except _Apart:
            found = ", ".join(str(generation) for generation, _ in self._parts.values())
            raise ParameterServerUnavailable(
                f"the shards of the parameter server did not agree: their target networks are of the generations "
                f"{found} (tried for {self._call.unavailable_after:g} s)"
            ) from None

    def _fetch_at_once(self, asker: pb.PullRequest) -> None:
        """Ask a few times without a pause: a shard that advances between two answers rarely does so twice."""
        for _ in range(_AT_ONCE):
            self._ask(asker)
            generations = {generation for generation, _ in self._parts.values()}
            if len(generations) == 1:
                break
        else:
            if min(generations) < self._parts[0][0]:
                raise _Apart
        self._take()

    def _ask(self, asker: pb.PullRequest) -> None:
        request = pb.PullRequest()
        request.CopyFrom(asker)
        request.vector, request.target_generation = _VECTOR, self.newest
        calls = []
        for link in self._links:
            had = self._parts.get(link.shard)
            calls.append(link.pull(request, None if had is None else had[0]))
        carriers: list[Carrier[pb.PullResponse]] = self._call(calls)
        answers = [carrier.message for carrier in carriers]
        if any(answer.incarnation_ended for answer in answers):
            raise IncarnationEnded
        if answers[0].finished:
            raise TrainingEnded(answers[0].global_step)
        self.hear(answers)
        for link, carrier in zip(self._links, carriers, strict=True):
            if not carrier.message.not_modified:
                self._parts[link.shard] = carrier.message.version, link.vector(carrier)

    def _take(self) -> None:
        parts = [self._parts[link.shard] for link in self._links]
        if len(parts) == 1:
            self.vector = parts[0][1]
        else:
            self.vector = np.concatenate([vector for _, vector in parts])
            self.vector.flags.writeable = False
        self._held = parts[0][0]
        self._parts = {}
