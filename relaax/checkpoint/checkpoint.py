"""A checkpoint as a value, and as files: array parts and the manifest that publishes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint.array_file import Arrays, from_bytes

FORMAT = 1


class Damaged(Exception):
    """A checkpoint that is not what was written. The message says in what."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`parts`: arrays by name, in named parts that are files of their own, such as one for each shard.

    `manifest`: anything that JSON can say.
    """

    checkpoint_id: str
    parts: Mapping[str, Arrays]
    manifest: Mapping[str, Any]


def part_key(checkpoint_id: str, part: str) -> str:
    """Where a part is kept."""
    return f"{checkpoint_id}/{part}.safetensors"


def manifest_key(checkpoint_id: str) -> str:
    """Where a manifest is kept: what makes a checkpoint one."""
    return f"{checkpoint_id}/manifest.json"


def describe_part(key: str, buffers: Sequence[memoryview]) -> dict[str, Any]:
    """What the manifest says of a part."""
    sha256 = hashlib.sha256()
    for buffer in buffers:
        sha256.update(buffer)
    return {"key": key, "bytes": sum(buffer.nbytes for buffer in buffers), "sha256": sha256.hexdigest()}


def verify_part(pieces: Iterable[bytes], description: Mapping[str, Any]) -> None:
    """Compare a file with what its manifest says of it; nothing is kept. Raises Damaged."""
    sha256, length = hashlib.sha256(), 0
    for piece in pieces:
        sha256.update(piece)
        length += len(piece)
    _compare(length, sha256.hexdigest(), description)


def decode_part(pieces: Iterable[bytes], description: Mapping[str, Any]) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a file that its manifest describes. Raises Damaged."""
    length = int(description["bytes"])
    data = np.empty(length, np.uint8)
    sha256, end = hashlib.sha256(), 0
    for piece in pieces:
        sha256.update(piece)
        begin, end = end, end + len(piece)
        if end <= length:
            data[begin:end] = np.frombuffer(piece, np.uint8)
    _compare(end, sha256.hexdigest(), description)
    try:
        return from_bytes(data)[0]
    except ValueError as error:
        raise Damaged(f"{description['key']}: {error}") from None


def encode_manifest(manifest: Mapping[str, Any]) -> bytes:
    """JSON that carries its own hash."""
    return json.dumps({**manifest, "sha256": _manifest_digest(manifest)}, indent=1, sort_keys=True).encode()


def decode_manifest(data: bytes) -> dict[str, Any]:
    """The manifest. Raises Damaged, also for a format that is not known here."""
    try:
        manifest = json.loads(data)
        claimed = manifest.pop("sha256")
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise Damaged("the manifest is not whole") from None
    if claimed != _manifest_digest(manifest):
        raise Damaged("the manifest is not what was written: its SHA-256 differs")
    if manifest.get("format") != FORMAT:
        raise Damaged(f"the manifest has format {manifest.get('format')!r}, this version reads {FORMAT}")
    return dict(manifest)


def _compare(length: int, sha256: str, description: Mapping[str, Any]) -> None:
    if length != description["bytes"]:
        raise Damaged(f"{description['key']} has {length} bytes, not {description['bytes']}")
    if sha256 != description["sha256"]:
        raise Damaged(f"{description['key']} is not what was written: its SHA-256 differs")


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
