"""Check what callers ask a replay server for, and put answers into messages, whatever the transport."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.replay import replay_pb2 as pb
from relaax.replay.table import Sample
from relaax.replay.wire import MAX_ITEMS, from_bytes, inserted_columns, numbers_from
from relaax.server.replay_server.held_table import HeldTable, InsertAnswer, WriterInsert
from relaax.server.service_errors import InvalidRequest

_NAME = re.compile(r"[0-9a-f]{32}")
_LARGEST_FRAME_NUMBER = 2**62


def insert_of_message(held: HeldTable, request: pb.InsertRequest) -> WriterInsert:
    """Return an insert with its arrays, views of the request's bytes. Raises ValueError and InvalidRequest."""
    spec = held.spec
    _check_insert(held, request)
    frames = None
    if spec.frame is not None:
        count = len(request.frames) // math.prod(spec.frame)
        frames = from_bytes(request.frames, (spec.frame, np.dtype(np.uint8)), count, "frames")
    elif request.frames:
        raise InvalidRequest(f"no field of {spec.name!r} is a stack of frames, and {len(request.frames)} bytes came")
    return _insert(request, inserted_columns(spec, request.count, request.columns), frames)


def insert_of_memory(held: HeldTable, request: pb.InsertRequest, memory: memoryview) -> WriterInsert:
    """Return an insert whose columns and frames lie in memory that the caller can write to.

    Raises ValueError and InvalidRequest.
    """
    spec = held.spec
    _check_insert(held, request)
    columns, frames = held.layout.owned(request.count, memory)
    return _insert(request, columns, None if spec.frame is None else frames)


def insert_response(answer: InsertAnswer) -> pb.InsertResponse:
    """Return what became of an insert."""
    outcome: pb.Outcome = pb.OUTCOME_DONE
    if answer.not_yet:
        outcome = pb.OUTCOME_NOT_YET
    elif answer.expected is not None:
        outcome = pb.OUTCOME_OUT_OF_STEP
    elif answer.duplicate:
        outcome = pb.OUTCOME_DUPLICATE
    return pb.InsertResponse(outcome=outcome, expected=answer.expected or 0, overrun=answer.overrun)


def state_of(held: HeldTable, sample: Sample | None = None) -> pb.TableState:
    """Return how a table stands, or stood when it was drawn from."""
    return pb.TableState(
        size=sample.size if sample else held.size,
        total_priority=sample.total_priority if sample else held.total_priority,
        begun=held.begun,
        inserts=held.limiter.inserts,
        samples=held.limiter.samples,
    )


def seconds(wish: float) -> float:
    """Return a wish to wait as a number that is one: what is not, waits for nothing."""
    return wish if wish > 0 else 0.0


def _check_insert(held: HeldTable, request: pb.InsertRequest) -> None:
    most = min(held.spec.capacity, MAX_ITEMS)
    if not _NAME.fullmatch(request.writer):
        raise InvalidRequest("writer must be 32 hexadecimal digits")
    if request.count > most:
        raise InvalidRequest(f"{request.count} items at once are too many; {most} are the most")
    if max(request.first_frame, request.keep_from) > _LARGEST_FRAME_NUMBER:
        raise InvalidRequest(f"frames are numbered up to {_LARGEST_FRAME_NUMBER}")


def _insert(
    request: pb.InsertRequest, columns: Mapping[str, npt.NDArray[Any]], frames: npt.NDArray[np.uint8] | None
) -> WriterInsert:
    given = request.priorities
    return WriterInsert(
        writer=request.writer,
        sequence=request.sequence,
        count=request.count,
        columns=columns,
        priorities=numbers_from(given, "float64", "priorities", request.count) if given else None,
        frames=frames,
        first_frame=request.first_frame,
        keep_from=request.keep_from,
        wait=seconds(request.wait),
        force=request.force,
        leaving=request.leaving,
    )
