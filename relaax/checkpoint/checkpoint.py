"""A checkpoint as a value, and its array parts as files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint.array_file import Arrays, from_bytes
from relaax.checkpoint.manifest import Damaged

_AT_ONCE = 1 << 18  # numbers, whose marks stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint. `parts`: arrays by name, in named parts that are separate files, such as one for each shard.

    `manifest`: anything that JSON can say.
    """

    checkpoint_id: str
    parts: Mapping[str, Arrays]
    manifest: Mapping[str, Any]


def manifest_key(checkpoint_id: str) -> str:
    """Return the key of a checkpoint's manifest. A checkpoint exists once its manifest does."""
    return f"{checkpoint_id}/manifest.json"


def describe_part(key: str, buffers: Sequence[memoryview]) -> dict[str, Any]:
    """Return the manifest's description of a part."""
    sha256 = hashlib.sha256()
    for buffer in buffers:
        sha256.update(buffer)
    return {"key": key, "bytes": sum(buffer.nbytes for buffer in buffers), "sha256": sha256.hexdigest()}


def verify_part(pieces: Iterable[bytes], description: Mapping[str, Any]) -> None:
    """Compare a file with its description in the manifest; nothing is kept. Raises Damaged."""
    sha256, length = hashlib.sha256(), 0
    for piece in pieces:
        sha256.update(piece)
        length += len(piece)
    _compare(length, sha256.hexdigest(), description)


def decode_part(
    pieces: Iterable[bytes], size: int, description: Mapping[str, Any], finite: bool = True
) -> dict[str, npt.NDArray[np.generic]]:
    """Decode a file into the arrays that its manifest describes; `size` is its length in the store. Raises Damaged.

    No memory is asked for before the two lengths agree.
    """
    length = int(description["bytes"])
    if size != length:
        raise Damaged(f"{description['key']} has {size} bytes, not {length}")
    data = np.empty(length, np.uint8)
    sha256, end = hashlib.sha256(), 0
    for piece in pieces:
        sha256.update(piece)
        begin, end = end, end + len(piece)
        if end <= length:
            data[begin:end] = np.frombuffer(piece, np.uint8)
    _compare(end, sha256.hexdigest(), description)
    try:
        arrays = from_bytes(data)[0]
    except ValueError as error:
        raise Damaged(f"{description['key']}: {error}") from None
    wrong = not_finite(arrays) if finite else None
    if wrong is not None:
        raise Damaged(f"{description['key']}: {wrong}")
    return arrays


def not_finite(arrays: Arrays) -> str | None:
    """Return a sentence that names a number which is not finite, or None. Training cannot continue from one."""
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


def _compare(length: int, sha256: str, description: Mapping[str, Any]) -> None:
    if length != description["bytes"]:
        raise Damaged(f"{description['key']} has {length} bytes, not {description['bytes']}")
    if sha256 != description["sha256"]:
        raise Damaged(f"{description['key']} is not what was written: its SHA-256 differs")
