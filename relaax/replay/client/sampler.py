"""Sampling from all shards of a replay memory as if they were one table."""

from __future__ import annotations

import contextlib
import threading
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
from relaax.replay.spec import TableDeclaration
from relaax.replay.wire import CAN_PACK, SampleArrays, SampleLayout, most_sampled, sample_from_message
from relaax.transport.channel import is_unavailable
from relaax.transport.long_messages import Carrier
from relaax.transport.shard_link import MemoryCall

CALL_WAIT = 1.0
"""Seconds for which one call waits until the limiter allows it."""
FIRST_EXCLUSION, LONGEST_EXCLUSION = 2.0, 16.0
"""Seconds for which a shard is excluded if its limiter allowed no sample and other shards returned items.

The time doubles with each exclusion that follows, up to `LONGEST_EXCLUSION`."""
MAX_UPDATES = 4096
"""Maximum number of new priorities that wait for the next sample request by gRPC, because a sample is pending."""
BATCHES_AT_ONCE = 2
"""Batches of one request that is sent ahead, if one shard has the table, shares memory and does not limit samples."""


@dataclass(frozen=True, slots=True)
class _ShardSample:
    """Items that one shard returned. `probabilities` are over all shards."""

    shard: int
    incarnation: str
    columns: Mapping[str, npt.NDArray[Any]]
    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    ages: npt.NDArray[np.int64]

    def part(self, begin: int, end: int) -> _ShardSample:
        """Return the items from `begin` to `end`."""
        columns = {name: column[begin:end] for name, column in self.columns.items()}
        numbers = self.keys[begin:end], self.probabilities[begin:end], self.ages[begin:end]
        return _ShardSample(self.shard, self.incarnation, columns, *numbers)


@dataclass(frozen=True, slots=True)
class _PendingSample:
    """A request for `count` items of one shard, without `call` if it is for none.

    share: the shard's share of all items that were requested at the time.
    """

    link: ShardLink
    incarnation: str
    count: int
    share: float
    call: MemoryCall[ShardMemory] | None


class ShardSampler:
    """A sampler that divides each batch among the shards.

    The division is multinomial, in proportion to the last known sums of the shards' priorities. If a shard has share s
    of the batch and draws an item with probability p, the item's probability over all shards is s p. A shard that does
    not answer, or whose limiter does not allow a sample, is excluded from the batch, and the other shards get its
    share. Used by one thread.

    ahead: whether the next batch is requested when a batch is returned. If there is one shard, which shares memory and
        does not limit samples, the next `BATCHES_AT_ONCE` batches are requested.
    """

    def __init__(self, group: ShardGroup, declaration: TableDeclaration, seed: int, *, ahead: bool = False) -> None:
        spec = declaration.spec
        self._group = group
        self._spec, self._layout = spec, SampleLayout(spec)
        self._most_sampled = most_sampled(spec)
        self._random = np.random.default_rng(seed)
        self._ahead = ahead
        self._several = ahead and len(group.links) == 1 and declaration.samples_per_insert is None
        self._requests: list[_PendingSample] = []  # of the next batch
        self._samples: list[_ShardSample] = []  # that no batch has had yet
        self._size = 0
        self._transports = [ReplayTransport(link, spec) for link in group.links]
        self._updating = threading.Lock()
        self._updates: list[list[pb.UpdatePrioritiesRequest]] = [[] for _ in group.links]  # by shard
        self._exclusions: dict[int, tuple[float, float]] = {}  # by shard: end of the exclusion, and its length
        self._unavailable_since: float | None = None

    def close(self) -> None:
        """Close the shared-memory connections."""
        for transport in self._transports:
            transport.close()

    def send_updates(self, shard: int, request: pb.UpdatePrioritiesRequest) -> bool:
        """Send priority updates to a shard by shared memory, or by gRPC with its next sample request. Thread-safe.

        Return False, without sending, if neither is possible now.
        """
        memory = self._transports[shard].connection
        if memory is not None:
            return memory.send_updates(request)
        with self._updating:
            updates = self._updates[shard]
            count = sum(len(update.keys) for update in (*updates, request)) // 8
            if not (self._requests and self._group.links[shard].packed) or count > MAX_UPDATES:
                return False
            updates.append(request)
            return True

    def sample(self, count: int, timeout: float) -> Sampled | None:
        """Draw `count` items; return None if the limiters did not allow it within `timeout` seconds.

        Items that were drawn before the timeout, or ahead, become part of the next batch. Raises ReplayUnavailable,
        ReplayError, and ValueError if `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"batch size must be at least 1, not {count}")
        deadline = time.monotonic() + timeout
        answered: list[ShardLink] = []
        wait = 0.0
        while (missing := count - sum(len(sample.keys) for sample in self._samples)) > 0:
            began = time.monotonic()
            requests, self._requests = self._requests, []
            requests = requests or self._send_requests(answered or self._candidates(), missing, wait)
            answered = self._receive_samples(requests, wait) if requests else []
            now = time.monotonic()
            if answered:
                wait = 0.0
            elif now >= deadline:
                return None
            else:
                if not requests or now - began < wait / 2:  # no shard is available, or too many calls wait
                    self._group.pause()
                wait = min(CALL_WAIT, deadline - now)
        batch = self._to_batch(count)
        if self._ahead and not self._requests:
            with contextlib.suppress(ReplayError):  # the next call raises it
                self._requests = self._send_requests(self._candidates(), self._at_once(count), 0.0)
        return batch

    def _at_once(self, count: int) -> int:
        """Return how many items to request ahead for batches of `count`."""
        several = BATCHES_AT_ONCE * count
        if not self._several or self._transports[0].connection is None:  # gRPC takes longer for long messages
            return count
        return several if several <= self._most_sampled else count

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

    def _send_requests(self, links: Sequence[ShardLink], missing: int, wait: float) -> list[_PendingSample]:
        """Request each shard's part of the missing items. Return no request if all shards are empty."""
        states = [link.state for link in links]
        weights = np.array([state.total_priority for state in states])
        if not weights.sum() > 0:
            weights = np.array([float(state.size) for state in states])
        if not weights.sum() > 0:
            return []  # a shard has just restarted
        shares = weights / weights.sum()
        parts = self._random.multinomial(missing, shares) if len(links) > 1 else [missing]
        requests = []
        for link, share, part in zip(links, shares, parts, strict=True):
            incarnation, call = link.incarnation or "", None
            if part:
                with self._updating:
                    updates, self._updates[link.shard] = self._updates[link.shard], []
                request = pb.SampleRequest(
                    incarnation=incarnation, count=part, wait=wait, packed=CAN_PACK, updates=updates
                )
                call = self._transports[link.shard].sample(request, wait + self._group.timeout)
            requests.append(_PendingSample(link, incarnation, int(part), float(share), call))
        return requests

    def _receive_samples(self, requests: Sequence[_PendingSample], waited: float) -> list[ShardLink]:
        """Receive the answers. `waited`: seconds for which the calls could wait.

        Return the shards that did not refuse, or no shard if none of them returned items.
        """
        answers = [self._receive(request) for request in requests]
        kept = [(one, answer) for one, answer in zip(requests, answers, strict=True) if not one.count or answer]
        if not any(answers):
            return []
        left = sum(request.share for request, _ in kept)
        for request, answer in kept:
            if answer is not None:
                self._add(self._to_shard_sample(request, answer, request.share / left))
        links = [request.link for request, _ in kept]
        self._update_exclusions([one.link for one in requests if one.link not in links], links, waited)
        self._size = sum(link.state.size for link in links)
        return links

    def _receive(self, request: _PendingSample) -> SampleArrays | None:
        """Wait for a shard's answer; return None if it has no items. Raises ReplayError."""
        link, incarnation, call = request.link, request.incarnation, request.call
        if call is None:
            return None
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
        arrays: SampleArrays | None
        answer, arrays = found if isinstance(found, tuple) else (found.message, None)
        link.on_sample_response(incarnation, answer)
        if answer.incarnation_ended or answer.not_yet:
            return None
        if arrays is None:
            arrays = self._arrays_by_grpc(request, found)
        return arrays

    def _arrays_by_grpc(self, request: _PendingSample, answer: Carrier[pb.SampleResponse]) -> SampleArrays:
        """Return the arrays of an answer by gRPC. Raises ReplayError."""
        try:
            if CAN_PACK and len(answer.data):
                return self._layout.received_arrays(request.count, answer.data)
            return sample_from_message(self._spec, request.count, answer.message)
        except ValueError as error:
            raise ReplayError(f"{request.link.target}: {error}") from None

    def _to_shard_sample(self, request: _PendingSample, drawn: SampleArrays, share: float) -> _ShardSample:
        shared = share * drawn.probabilities
        return _ShardSample(request.link.shard, request.incarnation, drawn.columns, drawn.keys, shared, drawn.ages)

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
        """Join samples into a batch, and keep the rest.

        Only one shard's items are left over from a whole batch, because the order of several shards is not random.
        """
        samples, self._samples = self._samples, []
        if len(samples) == 1 and len(samples[0].keys) > count:
            self._samples = [samples[0].part(count, len(samples[0].keys))]
            samples = [samples[0].part(0, count)]
        shards = [np.full(len(sample.keys), sample.shard, np.int64) for sample in samples]

        def whole(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
            joined = parts[0] if len(parts) == 1 else np.concatenate(parts)
            return joined if len(joined) == count else joined[:count]

        return Sampled(
            columns={name: whole([sample.columns[name] for sample in samples]) for name in self._spec.fields},
            probabilities=whole([sample.probabilities for sample in samples]),
            size=self._size,
            ages=whole([sample.ages for sample in samples]),
            places=whole(shards),
            keys=whole([sample.keys for sample in samples]),
            incarnations={sample.shard: sample.incarnation for sample in samples},
        )
