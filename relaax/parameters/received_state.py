"""The parameters and statistics of a worker, assembled from the answers of all shards."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import FlatVector, ParameterServerError, Pulled
from relaax.parameters.shard_client import ShardClient
from relaax.parameters.statistics import statistics_from_messages, statistics_to_messages
from relaax.parameters.wire import Carrier

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
