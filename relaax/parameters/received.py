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
from relaax.parameters.wire import statistics_from_messages, statistics_to_messages
from relaax.transport.long_messages import Carrier

_FETCHES = 3
_VECTOR = "target"
Answer = Carrier[pb.PushResponse] | Carrier[pb.PullResponse]


class IncarnationEnded(Exception):
    """The worker is unknown or belongs to an earlier incarnation: it must register again."""


class _GenerationsDiffer(Exception):
    """The target network of a shard is older than that of shard 0."""


class ReceivedTarget:
    """The newest target network that all shards have; the same array until there is a newer one.

    If it is soft, its parts may be some updates apart, and an answer to a push may contain the part of a shard.
    """

    def __init__(self, links: Sequence[ShardClient], call: Calls) -> None:
        self._links = links
        self._call = call
        self.reset(wanted=False)

    def reset(self, *, wanted: bool) -> None:
        """Drop the target network and its generation, because a new incarnation has new generations.

        `wanted`: whether the worker needs the target network.
        """
        self.vector: FlatVector | None = None
        """float32 [P], read-only; None before the first fetch, if it is not wanted, or if the algorithm has none."""
        self.newest = 0
        """The newest generation of shard 0. Every request contains it, so that the other shards learn it."""
        self._wanted = wanted
        self._held: dict[int, int] = {}  # per shard: the generation in `vector`
        self._parts: dict[int, tuple[int, FlatVector]] = {}  # per shard: newer generation, and the shard's range

    @property
    def _is_soft(self) -> bool:
        return self._links[0].has_soft_target

    def held_generation(self, shard: int) -> int | None:
        """Return the generation that a push names to receive a newer part; None if the target network is pulled."""
        return self._held.get(shard) if self._is_soft else None

    def note_generation(self, answers: Sequence[Answer]) -> bool:
        """Record the generation of shard 0, whose answer is the first. Return whether `vector` is older or newer.

        The generations of other shards are ignored, because any worker can advance them, unless the target network is
        soft.
        """
        if not answers[0].message.HasField("target_generation"):
            return False
        generations = [answer.message.target_generation for answer in answers]
        if self._is_soft:
            return any(self._generation(link) != each for link, each in zip(self._links, generations, strict=True))
        self.newest = max(self.newest, generations[0])
        return generations[0] != self._held.get(0)

    def refreshed(self, answers: Sequence[Answer], identity: pb.PullRequest) -> FlatVector | None:
        """Return the target network. Fetch what is newer and not in the answers. Raises what `fetch` raises."""
        for link, answer in zip(self._links, answers, strict=True):
            part = link.target_part(answer)
            if part is not None:
                self._parts[link.shard] = answer.message.target_generation, part
        if self.note_generation(answers) and self._wanted:
            self.fetch(identity)
        elif self._parts:
            self._join_parts()
        return self.vector

    def fetch(self, identity: pb.PullRequest) -> None:
        """Fetch the target network from all shards, with the same generation of all parts.

        A shard with an older generation copies its parameters when a request names the newest one. If shard 0 advances
        meanwhile, the shards are pulled again. If a shard stays ahead of shard 0, a worker has sent it a false
        generation. The copy of that shard is used until shard 0 has the same generation. The parts of a soft target
        network need not have the same generation. Raises IncarnationEnded, TrainingEnded, ParameterServerUnavailable
        after the bounded wait, and ParameterServerError.
        """
        try:
            self._call.retry(_GenerationsDiffer, self._fetch_now, identity)
        except _GenerationsDiffer:
            found = ", ".join(str(self._generation(link)) for link in self._links)
            raise ParameterServerUnavailable(
                f"the shards of the parameter server have target networks of different generations: "
                f"{found} (tried for {self._call.unavailable_after:g} s)"
            ) from None

    def _fetch_now(self, identity: pb.PullRequest) -> None:
        """Pull until the generations agree, at most `_FETCHES` times. No pause: they rarely differ twice in a row."""
        for _ in range(_FETCHES):
            self._pull_parts(identity)
            generations = [self._generation(link) or 0 for link in self._links]
            if self._is_soft or len(set(generations)) == 1:
                break
        else:
            if min(generations) < generations[0]:
                raise _GenerationsDiffer
        self._join_parts()

    def _pull_parts(self, identity: pb.PullRequest) -> None:
        request = pb.PullRequest()
        request.CopyFrom(identity)
        request.vector, request.target_generation = _VECTOR, self.newest
        calls = [link.pull(request, self._generation(link)) for link in self._links]
        carriers: list[Carrier[pb.PullResponse]] = self._call(calls)
        answers = [carrier.message for carrier in carriers]
        if any(answer.incarnation_ended for answer in answers):
            raise IncarnationEnded
        if answers[0].finished:
            raise TrainingEnded(answers[0].global_step)
        self.note_generation(carriers)
        for link, carrier in zip(self._links, carriers, strict=True):
            if not carrier.message.not_modified:
                self._parts[link.shard] = carrier.message.version, link.vector(carrier)

    def _generation(self, link: ShardClient) -> int | None:
        """Return the generation of the newest part of a shard; None before the first fetch."""
        return self._parts[link.shard][0] if link.shard in self._parts else self._held.get(link.shard)

    def _newest_part(self, link: ShardClient) -> FlatVector:
        if link.shard in self._parts:
            return self._parts[link.shard][1]
        assert self.vector is not None, "the first fetch receives all parts"
        return self.vector[link.start : link.end]

    def _join_parts(self) -> None:
        parts = [self._newest_part(link) for link in self._links]
        if len(parts) == 1:
            self.vector = parts[0]
        else:
            self.vector = np.concatenate(parts)
            self.vector.flags.writeable = False
        self._held.update({shard: generation for shard, (generation, _) in self._parts.items()})
        self._parts = {}


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
            for link, answer in zip(self._links, answers, strict=True):
                link.version = answer.message.version  # newer for a worker that does not use parameters
            return self._updated(self.pulled.parameters, first.version, first, target)
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
