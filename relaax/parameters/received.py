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
            self._call.retry(_Apart, self._fetch_at_once, asker)
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


Answer = Carrier[pb.PushResponse] | Carrier[pb.PullResponse]


class ReceivedState:
    """The newest parameters, statistics, frames and target network; the same object for as long as all are the same."""

    def __init__(self, links: Sequence[ShardClient]) -> None:
        self._links = links
        self.pulled: Pulled | None = None
        """The parameters; None before the first answer, and after a roll-back."""
        self.rolled_back = False
        """Whether there were parameters, and none since the roll-back."""

    def roll_back(self) -> None:
        """Forget the parameters: they are of an earlier incarnation."""
        self.rolled_back |= self.pulled is not None
        self.pulled = None

    def take(self, answers: Sequence[Answer], target: FlatVector | None) -> Pulled:
        """Join the answers of all shards. `target` is the target network, if there is one.

        Raises ParameterServerError if one is invalid.
        """
        first = answers[0].message
        if self.pulled is not None and all(answer.message.not_modified for answer in answers):
            return self._hold(self.pulled.parameters, self.pulled.version, first, target)
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
        return self._hold(vector, first.version, first, target)

    def own(self, parameters: FlatVector, answers: Sequence[Answer], target: FlatVector | None) -> Pulled:
        """Take the parameters after the worker's own update, with the updates of others until then."""
        for link, answer in zip(self._links, answers, strict=True):
            link.version = answer.message.version
        first = answers[0].message
        return self._hold(parameters, first.version, first, target)

    def _hold(
        self,
        parameters: FlatVector,
        version: int,
        first: pb.PushResponse | pb.PullResponse,
        target: FlatVector | None,
    ) -> Pulled:
        held = self.pulled
        try:
            if held is not None and statistics_to_messages(held.statistics) == list(first.statistics):
                statistics = held.statistics
            else:
                statistics = MappingProxyType(statistics_from_messages(first.statistics))
        except ValueError as error:
            raise ParameterServerError(
                f"parameter server {self._links[0].address} sent what is no statistic: {error}"
            ) from None
        if (
            held is not None
            and held.parameters is parameters
            and held.statistics is statistics
            and held.target is target
            and held.frames == first.frames
            and (held.actor_count, held.actor_rank) == (first.actor_count, first.actor_rank)
        ):
            return held
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
