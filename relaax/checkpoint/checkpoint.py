"""A checkpoint as a value, and as files: array parts and the manifest that publishes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

FORMAT = 1

Arrays = Mapping[str, npt.NDArray[np.generic]]


class Damaged(Exception):
    """A checkpoint that is not what was written. The message says in what."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`parts`: arrays by name, in named parts that are files of their own, such as one for each shard.

    `manifest`: anything that JSON can say. `checkpoint_id` is `SEQUENCE-GLOBALSTEP`.
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


def encode_part(arrays: Arrays) -> bytes:
    """The arrays as one safetensors file."""
    data: bytes = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    return data


def decode_part(data: bytes, description: Mapping[str, Any]) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a file that its manifest describes. Raises Damaged."""
    if len(data) != description["bytes"]:
        raise Damaged(f"{description['key']} has {len(data)} bytes, not {description['bytes']}")
    if digest(data) != description["sha256"]:
        raise Damaged(f"{description['key']} is not what was written: its SHA-256 differs")
    try:
        arrays: dict[str, npt.NDArray[np.generic]] = safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise Damaged(f"{description['key']}: {error}") from None
    return arrays


def describe_part(key: str, data: bytes) -> dict[str, Any]:
    """What the manifest says of a part."""
    return {"key": key, "bytes": len(data), "sha256": digest(data)}


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


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    return digest(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
