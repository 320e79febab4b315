"""Assemble the flat vectors of a checkpoint whose shards hold a range each, or cut them into other ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint.checkpoint import Checkpoint
from relaax.checkpoint.manifest import Damaged

Vector = npt.NDArray[np.generic]


def length(manifest: Mapping[str, Any]) -> int:
    """Return the length of the vectors over all shards. Raises Damaged if the ranges are not contiguous from 0."""
    end = 0
    for shard in _shards(manifest):
        if shard["start"] != end or shard["end"] < end:
            raise Damaged(
                f"the shards do not follow each other: one ends at {end}, the next begins at {shard['start']}"
            )
        end = int(shard["end"])
    return end


def check_parts(checkpoint: Checkpoint, name: str) -> None:
    """Raise Damaged if a part does not hold as much of the vector `name` as the manifest says."""
    for shard in _shards(checkpoint.manifest):
        if shard["part"] in checkpoint.parts:
            _of(checkpoint, shard, name)


def whole(checkpoint: Checkpoint, name: str) -> Vector:
    """Return the vector `name` of all shards, such as `parameters`. Raises Damaged if the parts do not fit."""
    return cut(checkpoint, name, 0, length(checkpoint.manifest))


def cut(checkpoint: Checkpoint, name: str, start: int, end: int) -> Vector:
    """Return elements [start, end) of the vector `name`; only the parts that hold some of them are needed.

    What one part holds is given as a view. Raises Damaged, and ValueError if the vector is shorter.
    """
    size = length(checkpoint.manifest)
    if not 0 <= start <= end <= size:
        raise ValueError(f"elements {start} to {end} of a vector of {size}")
    pieces = [
        _of(checkpoint, shard, name)[max(start, shard["start"]) - shard["start"] : end - shard["start"]]
        for shard in overlapping(checkpoint.manifest, start, end)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def overlapping(manifest: Mapping[str, Any], start: int, end: int) -> list[Mapping[str, Any]]:
    """Return the descriptions of the shards that hold some of the elements [start, end), in order. Raises Damaged."""
    return [shard for shard in _shards(manifest) if shard["start"] < end and start < shard["end"]]


def _of(checkpoint: Checkpoint, shard: Mapping[str, Any], name: str) -> Vector:
    array = checkpoint.parts.get(shard["part"], {}).get(name)
    expected = (shard["end"] - shard["start"],)
    if array is None or array.shape != expected:
        found = "nothing" if array is None else f"an array of shape {list(array.shape)}"
        raise Damaged(f"part {shard['part']} has {found} for {name}, not {expected[0]} elements")
    return array


def _shards(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    try:
        return sorted(manifest["shards"], key=lambda shard: (int(shard["start"]), int(shard["end"])))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the manifest does not say which shards there are: {error!r}") from None
