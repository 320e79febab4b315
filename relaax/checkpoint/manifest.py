"""Ids and manifests of checkpoints: names, order by age, encoding, and validated decoding."""

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
    """Return whether `text` is the id of a checkpoint."""
    return _ID.fullmatch(text) is not None


def owner(key: str) -> str:
    """Return the id of the checkpoint that a key belongs to; empty if the key has no folder."""
    folder, slash, _ = key.partition("/")
    return folder if slash else ""


def set_aside(keys: Iterable[str]) -> set[str]:
    """Return the ids of the checkpoints that were set aside."""
    return {owner(key) for key in keys if key == f"{owner(key)}/{ASIDE}" and is_id(owner(key))}


def sequence(checkpoint_id: str) -> int:
    """Return a checkpoint's number at its location, from 1; 0 if `checkpoint_id` is not an id."""
    match = _ID.fullmatch(checkpoint_id)
    return int(match.group(1)) if match else 0


def global_step_of(checkpoint_id: str) -> int:
    """Return a checkpoint's global step; 0 if `checkpoint_id` is not an id."""
    match = _ID.fullmatch(checkpoint_id)
    return int(match.group(2)) if match else 0


def highest_fence(store: Store) -> int:
    """Return the highest fence of a store's checkpoints, also unfinished ones; 0 without any. Raises StoreError."""
    return max((age(owner(key))[0] for key in store.list()), default=0)


def age(checkpoint_id: str) -> tuple[int, int]:
    """Return the sort key by age. The fence comes first, because a superseded writer may still write later."""
    match = _ID.fullmatch(checkpoint_id)
    return (int(match.group(3) or 0), int(match.group(1))) if match else (0, 0)


def milestones(ids: Iterable[str], every: int) -> list[str]:
    """Return the first checkpoint at or after each multiple of `every` global steps, newest first."""
    found: list[str] = []
    passed = 0
    for checkpoint_id in sorted(ids, key=age):
        if (count := global_step_of(checkpoint_id) // every) > passed:
            passed = count
            found.insert(0, checkpoint_id)
    return found


FORMAT = 1
_MODEL_FIELDS = ("incarnation", "fingerprint", "shards", "actors", "returns")
_SHARD_FIELDS = ("version", "counters", "ledger")


class Damaged(Exception):
    """The checkpoint was changed after it was saved, or its content is invalid. The message says why."""


class LaterFormat(Damaged):
    """The checkpoint seems intact, but its format needs a later version of RELAAX."""


MAX_COUNT = 1 << 53
"""The largest incarnation and counter: all JSON readers represent integers up to it exactly."""
MAX_TIME = 2.5e11
"""Seconds since 1970: the year 9892."""
MAX_SHARDS = 4096
_MAX_ACTOR = (1 << 32) - 1
_MAX_SHOWN = 80
_LIMITS = {"le": "at most", "ge": "at least"}
_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = _MAX_SHOWN
_repr.maxlevel = _repr.maxdict = 2

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Actor = Annotated[int, Field(ge=0, le=_MAX_ACTOR)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class _Read(BaseModel):
    """A model that keeps undeclared fields."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Part(_Read):
    key: str
    bytes: Count
    sha256: Sha256


class _Shard(_Read):
    """A shard: `part` holds elements [start, end) of the flat vectors. `ledger`: see `Ledger.as_json`.

    `target_generation`: generation of the array `target`; None without a target network.
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
    """The fields of all checkpoints, followed by the fields that only checkpoints of a model have."""

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
    """Decode the manifest of this checkpoint and check the bounds of every field.

    Raises Damaged, whose message names the field and its value, and LaterFormat.
    """
    try:
        manifest = json.loads(data)
        claimed = manifest.pop("sha256")
        digest = _digest(manifest)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        raise Damaged("the manifest is incomplete") from None
    if claimed != digest:
        raise Damaged("the manifest was changed: its SHA-256 differs")
    _check_format(manifest)
    try:
        read = _Manifest.model_validate(manifest)
    except pydantic.ValidationError as error:
        raise Damaged(_error_text(error)) from None
    if read.id != checkpoint_id:
        raise Damaged(f"the manifest in the folder of {checkpoint_id} belongs to {_shown(read.id)}")
    for name, part in read.parts.items():
        if part.key != part_key(checkpoint_id, name):
            raise Damaged(f"the manifest's parts.{name}.key is {_shown(part.key)}, not {part_key(checkpoint_id, name)}")
    if read.shards is not None:
        _check_shards(read.shards, read.parts)
    return dict(manifest)


def require_model(manifest: Mapping[str, Any]) -> None:
    """Raise Damaged if a manifest lacks a field that a server needs to resume from it."""
    for name in _MODEL_FIELDS:
        if manifest.get(name) is None:
            raise Damaged(_missing_text(name))
    for number, shard in enumerate(manifest["shards"]):
        for name in _SHARD_FIELDS:
            if name not in shard:
                raise Damaged(_missing_text(f"shards.{number}.{name}"))


def _missing_text(field: str) -> str:
    return f"the manifest has no {field}"


def _check_format(manifest: Mapping[str, Any]) -> None:
    """Check the format number, which all formats store in the same field. Raises Damaged and LaterFormat."""
    found = manifest.get("format")
    if type(found) is not int or found < 1:
        raise Damaged(f"the manifest's format is {_shown(found)}; this version supports {FORMAT}")
    if found == FORMAT:
        return
    versions = manifest.get("versions")
    maker = versions.get("relaax") if isinstance(versions, Mapping) else None
    who = f"version {maker[:_MAX_SHOWN]!a}" if isinstance(maker, str) else "a later version"
    raise LaterFormat(f"it was saved by {who} of RELAAX in format {found}; this version supports {FORMAT}")


def _check_shards(shards: list[_Shard], parts: Mapping[str, _Part]) -> None:
    end, seen = 0, set()
    for number, shard in enumerate(shards):
        if shard.part not in parts or shard.part in seen:
            why = "also belongs to another shard" if shard.part in seen else "is not one of its parts"
            raise Damaged(f"the manifest's shards.{number}.part is {_shown(shard.part)}, which {why}")
        if shard.start != end or shard.end <= shard.start:
            raise Damaged(
                f"the manifest's shards are not contiguous: the previous one ends at {end}, and shards.{number} has "
                f"elements {shard.start} to {shard.end}"
            )
        seen.add(shard.part)
        end = shard.end


def _error_text(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    field = ".".join(_shown(key)[1:-1] if isinstance(key, str) else str(key) for key in first["loc"])
    if first["type"] == "missing":
        return _missing_text(field)
    bounds = first.get("ctx", {})
    limit = next((f"it must be {word} {bounds[key]:.17g}" for key, word in _LIMITS.items() if key in bounds), None)
    return f"the manifest's {field} is {_shown(first['input'])}: {limit or first['msg'][:_MAX_SHOWN]}"


def _shown(value: object) -> str:
    """Return an untrusted value for display: shortened, and without control characters."""
    return _repr.repr(value).encode("ascii", "backslashreplace").decode()


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
