"""Conversion of a shard to its part of a checkpoint, and back, also from another number of shards."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint import Arrays, Checkpoint, Damaged
from relaax.checkpoint.checkpoint import check_parts, overlapping, vector_length, vector_range
from relaax.hosting.fingerprint import SPACES, space_text
from relaax.optim.vector import FlatVector
from relaax.parameters.moments import from_arrays, to_arrays
from relaax.server.parameter_server.shard.model import ModelRefused, ShardPosition
from relaax.server.parameter_server.shard.shard import Shard
from relaax.server.parameter_server.shard.state import Counters, Ledger, Snapshot, TargetCopy
from relaax.server.parameter_server.shard.target import GENERATION, TARGET, restored_generation

_log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
SLOT = "slots/"


def parts_for(manifest: Mapping[str, Any], position: ShardPosition) -> list[str]:
    """Return the names of a checkpoint's parts that overlap the range of a shard. Raises Damaged."""
    start, end = position.range(vector_length(manifest))
    return [shard["part"] for shard in overlapping(manifest, start, end)]


def recut(checkpoint: Checkpoint, position: ShardPosition) -> tuple[npt.NDArray[np.float32], dict[str, Array]]:
    """Return the parameters and slots of the shard's range. Raises Damaged.

    A slot with a float32 for each element of its part is cut like the parameters. For other slots, such as Adam's count
    of updates, the largest value over the parts is used.
    """
    start, end = position.range(vector_length(checkpoint.manifest))
    shards = overlapping(checkpoint.manifest, start, end)
    names = sorted({name for shard in shards for name in checkpoint.parts[shard["part"]] if name.startswith(SLOT)})
    slots: dict[str, Array] = {}
    for name in names:
        parts = [(shard["end"] - shard["start"], checkpoint.parts[shard["part"]].get(name)) for shard in shards]
        found = [(size, array) for size, array in parts if array is not None]
        if all(array.shape == (size,) and array.dtype == np.float32 for size, array in found):
            slots[name.removeprefix(SLOT)] = vector_range(checkpoint, name, start, end)
        else:
            slots[name.removeprefix(SLOT)] = max((array for _, array in found), key=lambda array: tuple(array.ravel()))
    return np.asarray(vector_range(checkpoint, "parameters", start, end), np.float32), slots


_NEVER_NEGATIVE = ("mean_square", "square_sum", "updates")
"""Slots that must not be negative, because optimizers use them in square roots or as exponents."""
_MUST_AGREE = ("algorithm", "observation_space", "action_space")


def shard_arrays(snapshot: Snapshot) -> Arrays:
    """Return the arrays of a shard's part: parameters, optimizer slots, moments of statistics, target."""
    arrays: dict[str, npt.NDArray[np.generic]] = {"parameters": snapshot.parameters}
    arrays.update((SLOT + name, slot) for name, slot in snapshot.slots.items())
    if snapshot.target is not None:
        arrays[TARGET] = snapshot.target.vector
    return arrays | to_arrays(snapshot.statistics)


def describe_shard(position: ShardPosition, shard: Shard, snapshot: Snapshot) -> dict[str, Any]:
    """Return the manifest's description of a shard."""
    return {
        "part": position.part,
        "start": shard.start,
        "end": shard.start + shard.size,
        "version": snapshot.counters.version,
        "counters": asdict(snapshot.counters),
        "ledger": dict(snapshot.ledger),
        **({GENERATION: snapshot.target.generation} if snapshot.target is not None else {}),
    }


def restore_shard(shard: Shard, position: ShardPosition, parameters: int, checkpoint: Checkpoint) -> None:
    """Restore parameters, slots, statistics, target network, counters and ledger.

    `parameters` is the length of the whole vector. A checkpoint of another number of shards is cut for this one. Its
    ledgers are dropped then, because they record pushes of its own ranges only. Raises ModelRefused if the checkpoint
    does not fit the configuration, and Damaged if its content is not what a shard writes.
    """
    manifest = checkpoint.manifest
    check_parts(checkpoint, "parameters")
    try:
        if vector_length(manifest) != parameters:
            raise ValueError(f"the model has {parameters} parameters, but the checkpoint has {vector_length(manifest)}")
        if len(manifest["shards"]) == position.count:
            snapshot = _snapshot(manifest["shards"][position.index], position.range(parameters), checkpoint)
        else:
            snapshot = _recut_snapshot(position, checkpoint)
        shard.restore(replace(snapshot, target=_target(shard, checkpoint, snapshot.parameters, position.count)))
    except ValueError as error:
        raise ModelRefused(
            f"checkpoint {checkpoint.checkpoint_id} does not fit this configuration: {error}; use another checkpoint "
            "directory, or the configuration that it was made with"
        ) from None


@contextmanager
def errors_as_damaged(what: str) -> Iterator[None]:
    """Convert errors inside into Damaged. `what`: the part of the checkpoint that is read."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise Damaged(
            f"the checkpoint's {what} cannot be decoded: {error if isinstance(error, ValueError) else repr(error)}"
        ) from None


def _snapshot(described: Mapping[str, Any], own: tuple[int, int], checkpoint: Checkpoint) -> Snapshot:
    if (described["start"], described["end"]) != own:
        raise Damaged(
            f"the part of a shard with elements {own[0]} to {own[1]} has elements {described['start']} to "
            f"{described['end']}"
        )
    arrays = checkpoint.parts[described["part"]]
    slots = {name.removeprefix(SLOT): array for name, array in arrays.items() if name.startswith(SLOT)}
    _check_slots(slots)
    parameters: npt.NDArray[np.float32] = np.asarray(vector_range(checkpoint, "parameters", *own), np.float32)
    counters = Counters.from_json(described["counters"])
    with errors_as_damaged("ledger"):
        Ledger().restore(described["ledger"])
    with errors_as_damaged("statistics"):
        return Snapshot(parameters, slots, counters, described["ledger"], from_arrays(arrays))


def _check_slots(slots: Mapping[str, npt.NDArray[Any]]) -> None:
    """Raise Damaged if a slot has negative values, which optimizers do not write and cannot use."""
    for name in _NEVER_NEGATIVE:
        if name in slots and slots[name].size and (least := slots[name].min()) < 0:
            raise Damaged(f"its optimizer slot {name} contains {least:g}, but must not be negative")


def _recut_snapshot(position: ShardPosition, checkpoint: Checkpoint) -> Snapshot:
    shards = checkpoint.manifest["shards"]
    parameters, slots = recut(checkpoint, position)
    _check_slots(slots)
    version = max(shard["version"] for shard in shards)
    if position.index:
        return Snapshot(parameters, slots, Counters(version=version), {})
    counters = _counters_of_shard_0(shards, position.count)
    first = checkpoint.parts.get(shards[0]["part"], {})
    with errors_as_damaged("statistics"):
        return Snapshot(parameters, slots, counters, {}, from_arrays(first))


def _counters_of_shard_0(shards: Sequence[Mapping[str, Any]], count: int) -> Counters:
    """Return the counters from which shard 0 of `count` shards continues."""
    counters = dict(shards[0]["counters"])
    if len(shards) != count:
        counters["version"] = max(shard["version"] for shard in shards)
    return Counters.from_json(counters)


def _target(shard: Shard, checkpoint: Checkpoint, parameters: FlatVector, count: int) -> TargetCopy | None:
    """Return the target network of a shard's range; None if the algorithm declares none. Raises Damaged.

    If the parts do not have the same generation of it, the restored `parameters` are the target network.
    """
    if shard.target_interval is None:
        return None
    shards = checkpoint.manifest["shards"]
    generation, whole = restored_generation(shards, _counters_of_shard_0(shards, count), shard.target_interval)
    if not whole:
        _log.info(
            "checkpoint %s has no complete target network: the target network starts as a copy of the parameters",
            checkpoint.checkpoint_id,
        )
        return TargetCopy(generation, parameters)
    vector = vector_range(checkpoint, TARGET, shard.start, shard.start + shard.size)
    return TargetCopy(generation, np.asarray(vector, np.float32))


def check_origin(checkpoint: Checkpoint, fingerprint: str, whose: str = "this server's") -> None:
    """Refuse a checkpoint of another algorithm or with other spaces.

    The keys of the algorithm declare which other values must not change (see `relaax.hosting.fingerprint`). `whose`:
    words for the owner of the spaces in `fingerprint`. Raises ModelRefused, whose message names all differences.
    """
    there: Mapping[str, Any] = checkpoint.manifest["fingerprint"]
    here: Mapping[str, Any] = json.loads(fingerprint)
    holders = {"algorithm": "this server's"}
    different = [
        f"its {key} is {_text(key, there.get(key))}, {holders.get(key, whose)} is {_text(key, here.get(key))}"
        for key in _MUST_AGREE
        if there.get(key) != here.get(key)
    ]
    if different:
        raise ModelRefused(
            f"checkpoint {checkpoint.checkpoint_id} is of another model: {'; '.join(different)}. Use the configuration "
            "that it was made with, or start a new training at another checkpoint location (relaax run --fresh)"
        )


def _text(key: str, value: object) -> str:
    text = space_text(value) if key in SPACES else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
