"""Read a checkpoint of one number of shards as a shard of another number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint import Checkpoint
from relaax.checkpoint.flat_vectors import cut, length, overlapping
from relaax.server.parameter_server.shard_position import ShardPosition

Array = npt.NDArray[Any]
SLOT = "slots/"


def parts_for(manifest: Mapping[str, Any], position: ShardPosition) -> list[str]:
    """Return the parts of a checkpoint that a shard reads: its own, or those that it overlaps. Raises Damaged."""
    start, end = position.range(length(manifest))
    return [shard["part"] for shard in overlapping(manifest, start, end)]


def recut(checkpoint: Checkpoint, position: ShardPosition) -> tuple[npt.NDArray[np.float32], dict[str, Array]]:
    """Return parameters and slots of the shard's range. Raises Damaged.

    A slot with one float32 for each element of its part is cut like the parameters. Any other, such as Adam's count of
    updates, is the largest of those that the parts have.
    """
    start, end = position.range(length(checkpoint.manifest))
    shards = overlapping(checkpoint.manifest, start, end)
    names = sorted({name for shard in shards for name in checkpoint.parts[shard["part"]] if name.startswith(SLOT)})
    slots: dict[str, Array] = {}
    for name in names:
        parts = [(shard["end"] - shard["start"], checkpoint.parts[shard["part"]].get(name)) for shard in shards]
        found = [(size, array) for size, array in parts if array is not None]
        if all(array.shape == (size,) and array.dtype == np.float32 for size, array in found):
            slots[name.removeprefix(SLOT)] = cut(checkpoint, name, start, end)
        else:
            slots[name.removeprefix(SLOT)] = max((array for _, array in found), key=lambda array: tuple(array.ravel()))
    return np.asarray(cut(checkpoint, "parameters", start, end), np.float32), slots
