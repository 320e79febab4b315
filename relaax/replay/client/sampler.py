"""Draw from all shards of a replay memory as if they were one table."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.client.memory import ReplayWay, ShardMemory
from relaax.replay.client.shards import ShardGroup, ShardLink
from relaax.replay.interfaces import ReplayError, Sampled
from relaax.replay.spec import TableSpec
from relaax.replay.wire import SampleArrays, sample_of_message
from relaax.transport.channel import is_unavailable
from relaax.transport.shard_link import MemoryCall

CALL_WAIT = 1.0
"""Seconds that one call waits until it is allowed."""
FIRST_REST, LONGEST_REST = 2.0, 16.0
"""Seconds for which a shard is left out that allowed nothing while others did, and the most that grow of them."""


_Answer = tuple[pb.SampleResponse, SampleArrays | None]


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one shard gave. `probabilities` are those over all shards."""

    shard: int
    incarnation: str
    columns: Mapping[str, npt.NDArray[Any]]
    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    ages: npt.NDArray[np.int64]


class ShardSampler:
    """Divide each batch among the shards, multinomially, in proportion to the last known sums of their priorities.

    An item that a shard draws with probability p has probability s p over all, where s is the share of its shard that
    the batch was divided by. A shard that does not answer, or allows nothing, is left out of that batch: the others
    have its share. Used by one thread.
    """

    def __init__(self, group: ShardGroup, spec: TableSpec, seed: int) -> None:
        self._group = group
        self._spec = spec
        self._random = np.random.default_rng(seed)
        self._pieces: list[_Piece] = []  # of a batch that could not be completed in its time
        self._size = 0
        self._ways = [ReplayWay(link, spec) for link in group.links]
        self._rests: dict[int, tuple[float, float]] = {}  # by shard: until when, and for how long
        self._away_since: float | None = None

    def close(self) -> None:
        """Close the connections through memory."""
        for way in self._ways:
            way.close()

    def sample(self, count: int, timeout: float) -> Sampled | None:
        """Draw `count` items; None if that was not allowed for `timeout` seconds.

        What was drawn until then is part of the next batch. Raises ReplayUnavailable and ReplayError.
        """
        if count < 1:
            raise ValueError(f"a sample of {count} items is none; 1 is the least")
        deadline = time.monotonic() + timeout
        delivered: list[ShardLink] = []
        wait = 0.0
        while (missing := count - sum(len(piece.keys) for piece in self._pieces)) > 0:
            links, began = delivered or self._candidates(), time.monotonic()
            delivered = self._round(links, missing, wait) if links else []
            now = time.monotonic()
            if delivered:
                wait = 0.0
            elif now >= deadline:
                return None
            else:
                if not links or now - began < wait / 2:  # nobody is there, or too many wait there
                    self._group.pause()
                wait = min(CALL_WAIT, deadline - now)
        return self._joined(count)

    def _candidates(self) -> list[ShardLink]:
        """Return the shards to draw from. Raises ReplayUnavailable if none is there for too long, and ReplayError."""
        living, now = self._group.living(), time.monotonic()
        for link in living:
            link.look_at_state(self._group.timeout)
        if living:
            self._away_since = None
        else:
            self._away_since = self._away_since or now
            if now - self._away_since >= self._group.patience:
                raise self._group.unavailable()
        begun = [link for link in living if link.state.begun]
        return [link for link in begun if self._rests.get(link.shard, (0.0, 0.0))[0] <= now] or begun

    def _round(self, links: Sequence[ShardLink], missing: int, wait: float) -> list[ShardLink]:
        """Ask each shard for its part of what is missing. Return those that refused nothing, if one gave something."""
        states = [link.state for link in links]
        weights = np.array([state.total_priority for state in states])
        if not weights.sum() > 0:
            weights = np.array([float(state.size) for state in states])
        if not weights.sum() > 0:
            return []  # one of them has just begun anew
        shares = weights / weights.sum()
        parts = self._random.multinomial(missing, shares)
        calls = [(link, link.incarnation, int(part)) for link, part in zip(links, parts, strict=True)]
        questions: list[MemoryCall[ShardMemory] | None] = [None] * len(calls)
        for i, (link, incarnation, part) in enumerate(calls):
            if part:
                request = pb.SampleRequest(incarnation=incarnation or "", count=part, wait=wait)
                timeout = wait + self._group.timeout
                questions[i] = self._ways[link.shard].sample(request, timeout)
        answers = [
            None if question is None else self._answer(link, incarnation or "", question)
            for (link, incarnation, _), question in zip(calls, questions, strict=True)
        ]
        kept = [i for i, answer in enumerate(answers) if not parts[i] or answer is not None]
        if not any(answers):
            return []
        left = shares[kept].sum()
        for i in kept:
            answer = answers[i]
            if answer is not None:
                self._keep(self._piece(*calls[i], answer, float(shares[i] / left)))
        self._note_rests([links[i] for i in range(len(links)) if i not in kept], [links[i] for i in kept], wait)
        self._size = sum(links[i].state.size for i in kept)
        return [links[i] for i in kept]

    def _answer(self, link: ShardLink, incarnation: str, question: MemoryCall[ShardMemory]) -> _Answer | None:
        """Return what a shard gave; None if that is nothing. Raises ReplayError."""
        try:
            found = question.result()
        except grpc.FutureCancelledError:
            link.lost(incarnation, question.future)
            return None
        except grpc.RpcError as error:
            if not is_unavailable(error):
                raise link.error(error) from None
            link.lost(incarnation, error)
            return None
        answer, arrays = found if isinstance(found, tuple) else (found, None)
        link.answered(incarnation, answer)
        return None if answer.incarnation_ended or answer.not_yet else (answer, arrays)

    def _piece(self, link: ShardLink, incarnation: str | None, count: int, answer: _Answer, share: float) -> _Piece:
        message, arrays = answer
        try:
            drawn = sample_of_message(self._spec, count, message) if arrays is None else arrays
        except ValueError as error:
            raise ReplayError(f"{link.target}: {error}") from None
        shared = share * drawn.probabilities
        return _Piece(link.shard, incarnation or "", drawn.columns, drawn.keys, shared, drawn.ages)

    def _keep(self, piece: _Piece) -> None:
        """Add a piece, and drop those of its shard's earlier lives: their keys are those of other items now."""
        same = [kept for kept in self._pieces if kept.shard != piece.shard or kept.incarnation == piece.incarnation]
        self._pieces = [*same, piece]

    def _note_rests(self, refused: Sequence[ShardLink], kept: Sequence[ShardLink], waited: float) -> None:
        """Leave shards out for a while that allowed nothing, though waited for, while others gave."""
        for link in kept:
            self._rests.pop(link.shard, None)
        for link in refused if waited > 0 else ():
            rest = min(2 * self._rests[link.shard][1], LONGEST_REST) if link.shard in self._rests else FIRST_REST
            self._rests[link.shard] = time.monotonic() + rest, rest

    def _joined(self, count: int) -> Sampled:
        """Return a batch of the pieces. What is too much is dropped: the batch before was to be larger."""
        pieces, self._pieces = self._pieces, []
        shards = [np.full(len(piece.keys), piece.shard, np.int64) for piece in pieces]

        def whole(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
            return parts[0][:count] if len(parts) == 1 else np.concatenate(parts)[:count]

        return Sampled(
            columns={name: whole([piece.columns[name] for piece in pieces]) for name in self._spec.fields},
            probabilities=whole([piece.probabilities for piece in pieces]),
            size=self._size,
            ages=whole([piece.ages for piece in pieces]),
            places=whole(shards),
            keys=whole([piece.keys for piece in pieces]),
            incarnations={piece.shard: piece.incarnation for piece in pieces},
        )
