"""Sampling from all shards of a replay memory as if they were one table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.memory import ReplayTransport, ShardMemory
from relaax.replay.client.shards import ShardGroup, ShardLink
from relaax.replay.interfaces import ReplayError, Sampled
from relaax.replay.spec import TableSpec
from relaax.replay.wire import SampleArrays, sample_from_message
from relaax.transport.channel import is_unavailable
from relaax.transport.shard_link import MemoryCall

CALL_WAIT = 1.0
"""Seconds for which one call waits until the limiter allows it."""
FIRST_EXCLUSION, LONGEST_EXCLUSION = 2.0, 16.0
"""Seconds for which a shard is excluded if its limiter allowed no sample and other shards returned items.

The time doubles with each exclusion that follows, up to `LONGEST_EXCLUSION`."""


_Answer = tuple[pb.SampleResponse, SampleArrays | None]


@dataclass(frozen=True, slots=True)
class _ShardSample:
    """Items that one shard returned. `probabilities` are over all shards."""

    shard: int
    incarnation: str
    columns: Mapping[str, npt.NDArray[Any]]
    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    ages: npt.NDArray[np.int64]


class ShardSampler:
    """A sampler that divides each batch among the shards.

    The division is multinomial, in proportion to the last known sums of the shards' priorities. If a shard has share s
    of the batch and draws an item with probability p, the item's probability over all shards is s p. A shard that does
    not answer, or whose limiter does not allow a sample, is excluded from the batch, and the other shards get its
    share. Used by one thread.
    """

    def __init__(self, group: ShardGroup, spec: TableSpec, seed: int) -> None:
        self._group = group
        self._spec = spec
        self._random = np.random.default_rng(seed)
        self._samples: list[_ShardSample] = []  # of a batch that was not complete at its timeout
        self._size = 0
        self._transports = [ReplayTransport(link, spec) for link in group.links]
        self._exclusions: dict[int, tuple[float, float]] = {}  # by shard: end of the exclusion, and its length
        self._unavailable_since: float | None = None

    def close(self) -> None:
        """Close the shared-memory connections."""
        for transport in self._transports:
            transport.close()

    def sample(self, count: int, timeout: float) -> Sampled | None:
        """Draw `count` items; return None if the limiters did not allow it within `timeout` seconds.

        Items that were drawn before the timeout become part of the next batch. Raises ReplayUnavailable, ReplayError,
        and ValueError if `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"batch size must be at least 1, not {count}")
        deadline = time.monotonic() + timeout
        answered: list[ShardLink] = []
        wait = 0.0
        while (missing := count - sum(len(sample.keys) for sample in self._samples)) > 0:
            links, began = answered or self._candidates(), time.monotonic()
            answered = self._request_samples(links, missing, wait) if links else []
            now = time.monotonic()
            if answered:
                wait = 0.0
            elif now >= deadline:
                return None
            else:
                if not links or now - began < wait / 2:  # no shard is available, or too many calls wait
                    self._group.pause()
                wait = min(CALL_WAIT, deadline - now)
        return self._to_batch(count)

    def _candidates(self) -> list[ShardLink]:
        """Return the shards to draw from.

        Raises ReplayUnavailable if no shard is available for too long, and ReplayError.
        """
        available, now = self._group.available(), time.monotonic()
        for link in available:
            link.poll_state(self._group.timeout)
        if available:
            self._unavailable_since = None
        else:
            self._unavailable_since = self._unavailable_since or now
            if now - self._unavailable_since >= self._group.patience:
                raise self._group.unavailable_error()
        ready = [link for link in available if link.state.begun]
        return [link for link in ready if self._exclusions.get(link.shard, (0.0, 0.0))[0] <= now] or ready

    def _request_samples(self, links: Sequence[ShardLink], missing: int, wait: float) -> list[ShardLink]:
        """Request each shard's part of the missing items.

        Return the shards that did not refuse, or no shard if none of them returned items.
        """
        states = [link.state for link in links]
        weights = np.array([state.total_priority for state in states])
        if not weights.sum() > 0:
            weights = np.array([float(state.size) for state in states])
        if not weights.sum() > 0:
            return []  # a shard has just restarted
        shares = weights / weights.sum()
        parts = self._random.multinomial(missing, shares)
        requests = [(link, link.incarnation, int(part)) for link, part in zip(links, parts, strict=True)]
        calls: list[MemoryCall[ShardMemory] | None] = [None] * len(requests)
        for i, (link, incarnation, part) in enumerate(requests):
            if part:
                request = pb.SampleRequest(incarnation=incarnation or "", count=part, wait=wait)
                timeout = wait + self._group.timeout
                calls[i] = self._transports[link.shard].sample(request, timeout)
        answers = [
            None if call is None else self._receive(link, incarnation or "", call)
            for (link, incarnation, _), call in zip(requests, calls, strict=True)
        ]
        kept = [i for i, answer in enumerate(answers) if not parts[i] or answer is not None]
        if not any(answers):
            return []
        left = shares[kept].sum()
        for i in kept:
            answer = answers[i]
            if answer is not None:
                self._add(self._to_shard_sample(*requests[i], answer, float(shares[i] / left)))
        self._update_exclusions([links[i] for i in range(len(links)) if i not in kept], [links[i] for i in kept], wait)
        self._size = sum(links[i].state.size for i in kept)
        return [links[i] for i in kept]

    def _receive(self, link: ShardLink, incarnation: str, call: MemoryCall[ShardMemory]) -> _Answer | None:
        """Wait for a shard's answer; return None if it has no items. Raises ReplayError."""
        try:
            found = call.result()
        except grpc.FutureCancelledError:
            link.mark_unreachable(incarnation, call.future)
            return None
        except grpc.RpcError as error:
            if not is_unavailable(error):
                raise link.to_replay_error(error) from None
            link.mark_unreachable(incarnation, error)
            return None
        answer, arrays = found if isinstance(found, tuple) else (found, None)
        link.on_sample_response(incarnation, answer)
        return None if answer.incarnation_ended or answer.not_yet else (answer, arrays)

    def _to_shard_sample(
        self, link: ShardLink, incarnation: str | None, count: int, answer: _Answer, share: float
    ) -> _ShardSample:
        message, arrays = answer
        try:
            drawn = sample_from_message(self._spec, count, message) if arrays is None else arrays
        except ValueError as error:
            raise ReplayError(f"{link.target}: {error}") from None
        shared = share * drawn.probabilities
        return _ShardSample(link.shard, incarnation or "", drawn.columns, drawn.keys, shared, drawn.ages)

    def _add(self, sample: _ShardSample) -> None:
        """Add a sample; drop samples of the shard's earlier incarnations, as their keys belong to other items."""
        current = [
            kept for kept in self._samples if kept.shard != sample.shard or kept.incarnation == sample.incarnation
        ]
        self._samples = [*current, sample]

    def _update_exclusions(self, refused: Sequence[ShardLink], kept: Sequence[ShardLink], waited: float) -> None:
        """Exclude the shards that `refused` after a wait for some time, because other shards returned items."""
        for link in kept:
            self._exclusions.pop(link.shard, None)
        for link in refused if waited > 0 else ():
            exclusion = (
                min(2 * self._exclusions[link.shard][1], LONGEST_EXCLUSION)
                if link.shard in self._exclusions
                else FIRST_EXCLUSION
            )
            self._exclusions[link.shard] = time.monotonic() + exclusion, exclusion

    def _to_batch(self, count: int) -> Sampled:
        """Join the samples into a batch. If the previous, unfinished batch was larger, drop the rest."""
        samples, self._samples = self._samples, []
        shards = [np.full(len(sample.keys), sample.shard, np.int64) for sample in samples]

        def whole(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return parts[0][:count] if len(parts) == 1 else np.concatenate(parts)[:count]

        return Sampled(
            columns={name: whole([sample.columns[name] for sample in samples]) for name in self._spec.fields},
            probabilities=whole([sample.probabilities for sample in samples]),
            size=self._size,
            ages=whole([sample.ages for sample in samples]),
            places=whole(shards),
            keys=whole([sample.keys for sample in samples]),
            incarnations={sample.shard: sample.incarnation for sample in samples},
        )
