"""A checkpoint in memory: its parts (one file each), and access to the flat vectors across the parts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint.array_file import Arrays, from_bytes
from relaax.checkpoint.manifest import Damaged

_AT_ONCE = 1 << 18  # elements per check, so that the results fit into the processor's cache


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint. `parts`: the arrays of each part, by name; a part is one file, for instance of a shard.

    `manifest`: any JSON.
    """

    checkpoint_id: str
    parts: Mapping[str, Arrays]
    manifest: Mapping[str, Any]


def manifest_key(checkpoint_id: str) -> str:
    """Return the key of a checkpoint's manifest. A checkpoint exists when its manifest exists."""
    return f"{checkpoint_id}/manifest.json"


def describe_part(key: str, buffers: Sequence[memoryview]) -> dict[str, Any]:
    """Return the manifest's description of a part."""
    sha256 = hashlib.sha256()
    for buffer in buffers:
        sha256.update(buffer)
    return {"key": key, "bytes": sum(buffer.nbytes for buffer in buffers), "sha256": sha256.hexdigest()}


def check_size(size: int, description: Mapping[str, Any]) -> None:
    """Compare the size of a part with its description in the manifest. Raises Damaged."""
    if size != description["bytes"]:
        raise Damaged(f"{description['key']} has {size} bytes, not {description['bytes']} as in the manifest")


def verify_part(pieces: Iterable[bytes], description: Mapping[str, Any]) -> None:
    """Compare a file with its description in the manifest. Raises Damaged."""
    sha256, length = hashlib.sha256(), 0
    for piece in pieces:
        sha256.update(piece)
        length += len(piece)
    check_size(length, description)
    if sha256.hexdigest() != description["sha256"]:
        raise Damaged(f"{description['key']} was changed after it was saved: its SHA-256 differs")


def decode_part(
    pieces: Iterable[bytes], size: int, description: Mapping[str, Any], finite: bool = True
) -> dict[str, npt.NDArray[np.generic]]:
    """Decode a file of `size` bytes into the arrays that its manifest describes.

    Raises Damaged. If the length is wrong, it is raised before memory is allocated.
    """
    check_size(size, description)
    data = np.empty(size, np.uint8)
    verify_part(_copied(pieces, data), description)
    try:
        arrays = from_bytes(data)[0]
    except ValueError as error:
        raise Damaged(f"{description['key']}: {error}") from None
    wrong = not_finite(arrays) if finite else None
    if wrong is not None:
        raise Damaged(f"{description['key']}: {wrong}")
    return arrays


def _copied(pieces: Iterable[bytes], data: npt.NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield the pieces, and copy them to `data` while they fit."""
    end = 0
    for piece in pieces:
        begin, end = end, end + len(piece)
        if end <= len(data):
            data[begin:end] = np.frombuffer(piece, np.uint8)
        yield piece


def not_finite(arrays: Arrays) -> str | None:
    """Return a sentence that names the first number that is not finite, or None if all are finite."""
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            continue
        flat = array.reshape(-1)
        for begin in range(0, flat.size, _AT_ONCE):
            finite = np.isfinite(flat[begin : begin + _AT_ONCE])
            if not finite.all():
                at = begin + int(finite.argmin())
                return f"element {at} of {name!a} is {flat[at]}"
    return None


Vector = npt.NDArray[np.generic]


def vector_length(manifest: Mapping[str, Any]) -> int:
    """Return the length of the vectors over all shards. Raises Damaged if the ranges are not contiguous from 0."""
    end = 0
    for shard in _shards(manifest):
        if shard["start"] != end or shard["end"] < end:
            raise Damaged(f"the shards are not contiguous: one ends at {end}, the next begins at {shard['start']}")
        end = int(shard["end"])
    return end


def check_parts(checkpoint: Checkpoint, name: str) -> None:
    """Raise Damaged if a part does not hold the range of the vector `name` that the manifest states."""
    for shard in _shards(checkpoint.manifest):
        if shard["part"] in checkpoint.parts:
            _of(checkpoint, shard, name)


def full_vector(checkpoint: Checkpoint, name: str) -> Vector:
    """Return the vector `name` of all shards, such as `parameters`. Raises Damaged if the parts do not fit."""
    return vector_range(checkpoint, name, 0, vector_length(checkpoint.manifest))


def vector_range(checkpoint: Checkpoint, name: str, start: int, end: int) -> Vector:
    """Return elements [start, end) of the vector `name`, as a view if one part has them all.

    Only the parts with some of the elements are needed. Raises Damaged, and ValueError if the vector is shorter.
    """
    size = vector_length(checkpoint.manifest)
    if not 0 <= start <= end <= size:
        raise ValueError(f"elements {start} to {end} are not within the vector of {size} elements")
    pieces = [
        _of(checkpoint, shard, name)[max(start, shard["start"]) - shard["start"] : end - shard["start"]]
        for shard in overlapping(checkpoint.manifest, start, end)
    ]
    if len(pieces) == 1:
        return pieces[0]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def overlapping(manifest: Mapping[str, Any], start: int, end: int) -> list[Mapping[str, Any]]:
    """Return the descriptions, in order, of the shards with some of the elements [start, end). Raises Damaged."""
    return [shard for shard in _shards(manifest) if shard["start"] < end and start < shard["end"]]


def _of(checkpoint: Checkpoint, shard: Mapping[str, Any], name: str) -> Vector:
    array = checkpoint.parts.get(shard["part"], {}).get(name)
    expected = (shard["end"] - shard["start"],)
    if array is None or array.shape != expected:
        found = "nothing" if array is None else f"an array of shape {list(array.shape)}"
        raise Damaged(f"part {shard['part']} has {found} for {name}; {expected[0]} elements are expected")
    return array


def _shards(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    try:
        return sorted(manifest["shards"], key=lambda shard: (int(shard["start"]), int(shard["end"])))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the manifest does not describe its shards: {error!r}") from None
