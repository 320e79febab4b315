"""The parameters and statistics of a worker, assembled from the answers of all shards."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.calls import Calls
from relaax.parameters.interfaces import (
    FlatVector,
    ParameterServerError,
    ParameterServerUnavailable,
    Pulled,
    TrainingEnded,
)
from relaax.parameters.shard_client import ShardClient
from relaax.parameters.wire import Carrier, statistics_from_messages, statistics_to_messages

_FETCHES = 3
_VECTOR = "target"
_Answers = Sequence[pb.PushResponse] | Sequence[pb.PullResponse]


class IncarnationEnded(Exception):
    """The worker is unknown or belongs to an earlier incarnation: it must register again."""


class _GenerationsDiffer(Exception):
    """The target network of a shard is older than that of shard 0."""


class ReceivedTarget:
    """The newest target network that all shards have; the same array until there is a newer one."""

    def __init__(self, links: Sequence[ShardClient], call: Calls) -> None:
        self._links = links
        self._call = call
        self.reset(wanted=False)

    def reset(self, *, wanted: bool) -> None:
        """Drop the target network and its generation, because a new incarnation has new generations.

        `wanted`: whether the worker trains, and so needs the target network.
        """
        self.vector: FlatVector | None = None
        """float32 [P], read-only; None before the first fetch, if it is not wanted, or if the algorithm has none."""
        self.newest = 0
        """The newest generation of shard 0. Every request contains it, so that the other shards learn it."""
        self._wanted = wanted
        self._held: int | None = None  # the generation of `vector`
        self._parts: dict[int, tuple[int, FlatVector]] = {}  # per shard: generation, and the shard's range

    def note_generation(self, answers: _Answers) -> bool:
        """Record the generation of shard 0, whose answer is the first. Return whether it differs from that of `vector`.

        The generations of other shards are ignored, because any worker can advance them.
        """
        if not answers[0].HasField("target_generation"):
            return False
        generation = answers[0].target_generation
        self.newest = max(self.newest, generation)
        return generation != self._held

    def refreshed(self, answers: _Answers, identity: pb.PullRequest) -> FlatVector | None:
        """Return the target network. Fetch it first if shard 0 has another generation. Raises what `fetch` raises."""
        if self.note_generation(answers) and self._wanted:
            self.fetch(identity)
        return self.vector

    def fetch(self, identity: pb.PullRequest) -> None:
        """Fetch the target network from all shards, with the same generation of all parts.

        A shard with an older generation copies its parameters when a request names the newest one. If shard 0 advances
        meanwhile, the shards are pulled again. If a shard stays ahead of shard 0, a worker has sent it a false
        generation. The copy of that shard is used until shard 0 has the same generation. Raises IncarnationEnded,
        TrainingEnded, ParameterServerUnavailable after the bounded wait, and ParameterServerError.
        """
        try:
            self._call.retry(_GenerationsDiffer, self._fetch_now, identity)
        except _GenerationsDiffer:
            found = ", ".join(str(generation) for generation, _ in self._parts.values())
            raise ParameterServerUnavailable(
                f"the shards of the parameter server have target networks of different generations: "
                f"{found} (tried for {self._call.unavailable_after:g} s)"
            ) from None

    def _fetch_now(self, identity: pb.PullRequest) -> None:
        """Pull until the generations agree, at most `_FETCHES` times. No pause: they rarely differ twice in a row."""
        for _ in range(_FETCHES):
            self._pull_parts(identity)
            generations = {generation for generation, _ in self._parts.values()}
            if len(generations) == 1:
                break
        else:
            if min(generations) < self._parts[0][0]:
                raise _GenerationsDiffer
        self._join_parts()

    def _pull_parts(self, identity: pb.PullRequest) -> None:
        request = pb.PullRequest()
        request.CopyFrom(identity)
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
        self.note_generation(answers)
        for link, carrier in zip(self._links, carriers, strict=True):
            if not carrier.message.not_modified:
                self._parts[link.shard] = carrier.message.version, link.vector(carrier)

    def _join_parts(self) -> None:
        parts = [self._parts[link.shard] for link in self._links]
        if len(parts) == 1:
            self.vector = parts[0][1]
        else:
            self.vector = np.concatenate([vector for _, vector in parts])
            self.vector.flags.writeable = False
        self._held = parts[0][0]
        self._parts = {}


Answer = Carrier[pb.PushResponse] | Carrier[pb.PullResponse]


class ReceivedState:
    """The newest parameters, statistics, frames and target network; the same object while all are unchanged."""

    def __init__(self, links: Sequence[ShardClient]) -> None:
        self._links = links
        self.pulled: Pulled | None = None
        """The last answer; None before the first one, and after a roll-back."""
        self.rolled_back = False
        """Whether parameters were dropped by a roll-back and have not been received again."""

    def roll_back(self) -> None:
        """Drop the parameters: they belong to an earlier incarnation."""
        self.rolled_back |= self.pulled is not None
        self.pulled = None

    def join(self, answers: Sequence[Answer], target: FlatVector | None) -> Pulled:
        """Join the answers of all shards. `target` is the target network, or None.

        Raises ParameterServerError if an answer is invalid.
        """
        first = answers[0].message
        if self.pulled is not None and all(answer.message.not_modified for answer in answers):
            return self._updated(self.pulled.parameters, self.pulled.version, first, target)
        if len(self._links) == 1:
            vector = self._links[0].received(answers[0])
        else:
            vector = np.empty(self._links[-1].end, np.float32)
            for link, answer in zip(self._links, answers, strict=True):
                part = slice(link.start, link.end)
                if answer.message.not_modified and self.pulled is not None:
                    vector[part] = self.pulled.parameters[part]
                else:
                    vector[part] = link.received(answer)
            vector.flags.writeable = False
        return self._updated(vector, first.version, first, target)

    def join_own_update(self, parameters: FlatVector, answers: Sequence[Answer], target: FlatVector | None) -> Pulled:
        """Return `parameters`, which the worker updated in shared memory, with the counters of the answers."""
        for link, answer in zip(self._links, answers, strict=True):
            link.version = answer.message.version
        first = answers[0].message
        return self._updated(parameters, first.version, first, target)

    def _updated(
        self,
        parameters: FlatVector,
        version: int,
        first: pb.PushResponse | pb.PullResponse,
        target: FlatVector | None,
    ) -> Pulled:
        previous = self.pulled
        try:
            if previous is not None and statistics_to_messages(previous.statistics) == list(first.statistics):
                statistics = previous.statistics
            else:
                statistics = MappingProxyType(statistics_from_messages(first.statistics))
        except ValueError as error:
            raise ParameterServerError(
                f"parameter server {self._links[0].address} sent an invalid statistic: {error}"
            ) from None
        if (
            previous is not None
            and previous.parameters is parameters
            and previous.statistics is statistics
            and previous.target is target
            and previous.frames == first.frames
            and (previous.actor_count, previous.actor_rank) == (first.actor_count, first.actor_rank)
        ):
            return previous
        self.pulled = Pulled(
            parameters,
            version,
            first.global_step,
            statistics,
            first.frames,
            target,
            first.actor_count,
            first.actor_rank,
        )
        self.rolled_back = False
        return self.pulled
