"""A checkpoint's id and manifest: how they are named, ordered, read and, before that, written."""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from relaax.checkpoint.store import Store

_ID = re.compile(r"([0-9]{8,})-([0-9]+)(?:-f([0-9]+))?")
ASIDE = "damaged.json"
"""The file in the folder of a checkpoint that was set aside."""


def is_id(text: str) -> bool:
    """Return whether this is the id of a checkpoint."""
    return _ID.fullmatch(text) is not None


def owner(key: str) -> str:
    """Return the id of the checkpoint that a key belongs to; empty if the key is in no folder."""
    folder, slash, _ = key.partition("/")
    return folder if slash else ""


def set_aside(keys: Iterable[str]) -> set[str]:
    """Return the ids of the checkpoints that were set aside."""
    return {owner(key) for key in keys if key == f"{owner(key)}/{ASIDE}" and is_id(owner(key))}


def sequence(checkpoint_id: str) -> int:
    """Return a checkpoint's number at its location, from 1; 0 if this is not a checkpoint's id."""
    match = _ID.fullmatch(checkpoint_id)
    return int(match.group(1)) if match else 0


def highest_fence(store: Store) -> int:
    """Return the highest fence of all checkpoints of a store, finished or not, or 0. Raises StoreError."""
    return max((age(owner(key))[0] for key in store.list()), default=0)


def age(checkpoint_id: str) -> tuple[int, int]:
    """Return the key that orders checkpoints by age: fence first, since a writer that was fenced off may write late."""
    match = _ID.fullmatch(checkpoint_id)
    return (int(match.group(3) or 0), int(match.group(1))) if match else (0, 0)


FORMAT = 1
_FIELDS_OF_A_MODEL = ("incarnation", "fingerprint", "shards", "actors", "returns")
_FIELDS_OF_ITS_SHARDS = ("version", "counters", "ledger")


class Damaged(Exception):
    """The checkpoint is not what was written, or its content is impossible. The message says what is wrong."""


class LaterFormat(Damaged):
    """The checkpoint seems intact, but its format needs a later version."""


MAX_COUNT = 1 << 53
"""The largest incarnation and the largest counter: JSON has exact integers up to it."""
MAX_TIME = 2.5e11
"""Seconds since 1970: the year 9892."""
MAX_SHARDS = 4096
_MAX_ACTOR = (1 << 32) - 1
_MAX_SHOWN = 80
_LIMITS = {"le": "at most", "ge": "at least"}
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _MAX_SHOWN
_short.maxlevel = _short.maxdict = 2

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Actor = Annotated[int, Field(ge=0, le=_MAX_ACTOR)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class _Read(BaseModel):
    """A model that leaves undeclared fields as they are."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Part(_Read):
    key: str
    bytes: Count
    sha256: Sha256


class _Shard(_Read):
    """A shard: elements [start, end) of the flat vectors, which `part` holds. `ledger`: see `Ledger.as_json`.
    `target_generation`: of the array `target`; None without a target network.
    """

    part: Name
    start: Count
    end: Count
    version: Count = 0
    counters: dict[Name, Count] = {}
    ledger: dict[Name, Annotated[list[Count], Field(min_length=3, max_length=3)]] = {}
    target_generation: Count | None = None


class _Returns(_Read):
    episodes: Count
    last: Annotated[list[float], Field(max_length=10_000)]
    best: float | None


class _Manifest(_Read):
    """The fields of every checkpoint, followed by those of a checkpoint of a model."""

    id: str
    global_step: Count
    time: Annotated[float, Field(ge=0, le=MAX_TIME)]
    parts: dict[Name, _Part]
    fence: Count = 0
    mean_return: float | None = None
    best_mean_return: float | None = None
    updates: Count = 0
    frames: Count = 0
    seed: int = 0
    versions: dict[Name, str] = {}
    configuration: dict[str, Any] = {}

    incarnation: Count = 0
    fingerprint: dict[str, Any] = {}
    shards: Annotated[list[_Shard], Field(min_length=1, max_length=MAX_SHARDS)] | None = None
    actors: dict[Name, list[Annotated[list[Actor], Field(min_length=2, max_length=2)]]] = {}
    returns: _Returns | None = None


def part_key(checkpoint_id: str, part: str) -> str:
    """Return the key of a part."""
    return f"{checkpoint_id}/{part}.safetensors"


def encode_manifest(manifest: Mapping[str, Any]) -> bytes:
    """Encode a manifest as JSON that contains its own hash."""
    return json.dumps({**manifest, "sha256": _digest(manifest)}, indent=1, sort_keys=True).encode()


def decode_manifest(data: bytes, checkpoint_id: str) -> dict[str, Any]:
    """Decode the manifest of this checkpoint and check the bounds of every field. Raises Damaged, whose message names
    the field and its value, and LaterFormat.
    """
    try:
        manifest = json.loads(data)
        claimed = manifest.pop("sha256")
        digest = _digest(manifest)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise Damaged("the manifest is not whole") from None
    if claimed != digest:
        raise Damaged("the manifest is not what was written: its SHA-256 differs")
    _check_format(manifest)
    try:
        read = _Manifest.model_validate(manifest)
    except pydantic.ValidationError as error:
        raise Damaged(_sentence(error)) from None
    if read.id != checkpoint_id:
        raise Damaged(f"the manifest is that of {_shown(read.id)}, in the folder of {checkpoint_id}")
    for name, part in read.parts.items():
        if part.key != part_key(checkpoint_id, name):
            raise Damaged(f"the manifest's parts.{name}.key is {_shown(part.key)}, not {part_key(checkpoint_id, name)}")
    if read.shards is not None:
        _check_shards(read.shards, read.parts)
    return dict(manifest)


def require_model(manifest: Mapping[str, Any]) -> None:
    """Raise Damaged if a manifest lacks what a server needs to continue from it."""
    for name in _FIELDS_OF_A_MODEL:
        if manifest.get(name) is None:
            raise Damaged(f"the manifest has no {name}")
    for number, shard in enumerate(manifest["shards"]):
        for name in _FIELDS_OF_ITS_SHARDS:
            if name not in shard:
                raise Damaged(f"the manifest has no shards.{number}.{name}")


def _check_format(manifest: Mapping[str, Any]) -> None:
    """Check format number and SHA-256, which every format keeps in the same place."""
    found = manifest.get("format")
    if type(found) is not int or found < 1:
        raise Damaged(f"the manifest's format is {_shown(found)}, this version reads {FORMAT}")
    if found == FORMAT:
        return
    versions = manifest.get("versions")
    maker = versions.get("relaax") if isinstance(versions, Mapping) else None
    who = f"version {maker[:_MAX_SHOWN]!a}" if isinstance(maker, str) else "a later version"
    raise LaterFormat(f"it was made by {who} of RELAAX and has format {found}, this version reads {FORMAT}")


def _check_shards(shards: list[_Shard], parts: Mapping[str, _Part]) -> None:
    end, seen = 0, set()
    for number, shard in enumerate(shards):
        if shard.part not in parts or shard.part in seen:
            why = "is that of another shard too" if shard.part in seen else "is none of its parts"
            raise Damaged(f"the manifest's shards.{number}.part is {_shown(shard.part)}, which {why}")
        if shard.start != end or shard.end <= shard.start:
            raise Damaged(
                f"the shards do not follow each other: the one before ends at {end}, and shards.{number} is of "
                f"elements {shard.start} to {shard.end}"
            )
        seen.add(shard.part)
        end = shard.end


def _sentence(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(_shown(key)[1:-1] if isinstance(key, str) else str(key) for key in first["loc"])
    if first["type"] == "missing":
        return f"the manifest has no {field}"
    bounds = first.get("ctx", {})
    limit = next((f"{word} {bounds[key]:.17g} is possible" for key, word in _LIMITS.items() if key in bounds), None)
    return f"the manifest's {field} is {_shown(first['input'])}: {limit or first['msg'][:_MAX_SHOWN]}"


def _shown(value: object) -> str:
    """Return a value that anybody may have written for display: short, and without control characters."""
    return _short.repr(value).encode("ascii", "backslashreplace").decode()


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
