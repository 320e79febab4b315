"""Hostile checkpoints with correct hashes: an attacker who can write the store can compute a manifest's SHA-256."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from relaax.checkpoint.array_file import to_buffers

Change = Callable[[dict[str, Any]], None]


def sealed(manifest: dict[str, Any]) -> bytes:
    """Return a manifest as JSON with its correct SHA-256."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**rest, "sha256": digest}, indent=1, sort_keys=True).encode()


def forge(checkpoint: Path, change: Change) -> None:
    """Change the manifest of the checkpoint in a folder, and update its SHA-256."""
    path = checkpoint / "manifest.json"
    manifest = copy.deepcopy(json.loads(path.read_bytes()))
    change(manifest)
    path.write_bytes(sealed(manifest))


def put(*keys: str | int, value: Any) -> Change:
    """Return a change that replaces the value at this path of the manifest."""

    def change(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in keys[:-1]:
            at = at[key]
        at[keys[-1]] = value

    return change


def without(*keys: str | int) -> Change:
    """Return a change that deletes this path of the manifest."""

    def change(manifest: dict[str, Any]) -> None:
        at: Any = manifest
        for key in keys[:-1]:
            at = at[key]
        del at[keys[-1]]

    return change


PART = ("parts", "shard-0")
MANIFESTS: dict[str, tuple[Change, str]] = {
    "a key above the store": (put(*PART, "key", value="../../etc/passwd"), "parts.shard-0.key is '../../etc/passwd'"),
    "a key of another checkpoint": (
        put(*PART, "key", value="00000001-10-f1/shard-0.safetensors"),
        "parts.shard-0.key is '00000001-10-f1/shard-0.safetensors'",
    ),
    "a key that is a number": (put(*PART, "key", value=7), "parts.shard-0.key is 7"),
    "too many bytes": (put(*PART, "bytes", value=10**15), "bytes, not 1000000000000000"),
    "bytes beyond int64": (put(*PART, "bytes", value=10**30), "parts.shard-0.bytes is 1000000"),
    "negative bytes": (put(*PART, "bytes", value=-1), "parts.shard-0.bytes is -1"),
    "no part": (put("parts", value={}), "shards.0.part is 'shard-0', which is not one of its parts"),
    "parts as a list": (put("parts", value=[]), "parts is []"),
    "no incarnation": (without("incarnation"), "has no incarnation"),
    "a huge incarnation": (put("incarnation", value=1 << 64), "incarnation is 18446744073709551616"),
    "a negative incarnation": (put("incarnation", value=-5), "incarnation is -5"),
    "text for a counter": (put("shards", 0, "counters", "env_steps", value="many"), "counters.env_steps is 'many'"),
    "a negative counter": (put("shards", 0, "counters", "env_steps", value=-10), "counters.env_steps is -10"),
    "a counter above 64 bits": (put("shards", 0, "counters", "frames", value=1 << 64), "counters.frames is 1844"),
    "a version that is a fraction": (put("shards", 0, "version", value=1.5), "shards.0.version is 1.5"),
    "no counters": (without("shards", 0, "counters"), "has no shards.0.counters"),
    "a shard that is longer than its part": (put("shards", 0, "end", value=10**12), "shard-0"),
    "a shard that starts in the middle": (put("shards", 0, "start", value=3), "shards are not contiguous"),
    "no shards": (put("shards", value=[]), "shards is []"),
    "wrong returns": (put("returns", value={"episodes": 1, "last": "high", "best": None}), "returns.last is 'high'"),
    "returns that are not numbers": (
        put("returns", value={"episodes": 1, "last": [float("nan")], "best": None}),
        "returns.last.0 is nan",
    ),
    "no returns": (without("returns"), "has no returns"),
    "a ledger of texts": (put("shards", 0, "ledger", value={"w": ["a", 0, 0]}), "ledger.w.0 is 'a'"),
    "a ledger with an unknown reason": (put("shards", 0, "ledger", value={"w": [1, 99, 0]}), "ledger"),
    "actors that are not numbers": (put("actors", value={"s": ["x"]}), "actors.s.0"),
    "an empty fingerprint": (put("fingerprint", value={}), "fingerprint cannot be read"),
    "a fingerprint that is a text": (put("fingerprint", value="da3c"), "fingerprint is 'da3c'"),
    "a time beyond the calendar": (put("time", value=1e300), "time is 1e+300"),
    "a mean return that is a text": (put("mean_return", value="\x1b[2Jbest"), "mean_return is '\\x1b[2Jbest'"),
    "a global step below zero": (put("global_step", value=-1), "global_step is -1"),
}
"""By name: a change of the manifest of a checkpoint with one shard, and a part of the expected error."""


def replace_arrays(checkpoint: Path, arrays: dict[str, Any]) -> None:
    """Replace the arrays in the part of shard 0, and update the manifest."""
    data = b"".join(to_buffers(arrays))
    (checkpoint / "shard-0.safetensors").write_bytes(data)

    def change(manifest: dict[str, Any]) -> None:
        manifest["parts"]["shard-0"].update(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    forge(checkpoint, change)


def arrays_of(checkpoint: Path) -> dict[str, Any]:
    """Return copies of the arrays in the part of shard 0."""
    from relaax.checkpoint.array_file import from_bytes

    data = np.fromfile(checkpoint / "shard-0.safetensors", np.uint8)
    return {name: np.array(array) for name, array in from_bytes(data)[0].items()}


def with_number(name: str, number: float = math.nan) -> Callable[[Path], None]:
    """Return a change that puts a number into the middle of an array of the part."""

    def change(checkpoint: Path) -> None:
        arrays = arrays_of(checkpoint)
        flat = arrays[name].reshape(-1)
        flat[flat.size // 2] = number
        replace_arrays(checkpoint, arrays)

    return change


def without_array(name: str) -> Callable[[Path], None]:
    """Return a change that deletes an array of the part."""

    def change(checkpoint: Path) -> None:
        arrays = arrays_of(checkpoint)
        del arrays[name]
        replace_arrays(checkpoint, arrays)

    return change


def with_a_huge_shape(checkpoint: Path) -> None:
    """Replace the part by an empty array with an axis of 10**30."""
    header = {"parameters": {"dtype": "F32", "shape": [0, 10**30], "data_offsets": [0, 0]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = len(text).to_bytes(8, "little") + text
    (checkpoint / "shard-0.safetensors").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    forge(checkpoint, lambda manifest: manifest["parts"]["shard-0"].update(bytes=len(data), sha256=digest))


def _replaced(make: Callable[[Path], None], name: str) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        path = checkpoint / name
        path.unlink()
        make(path)

    return change


def _long(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


PART_FILE, MANIFEST_FILE = "shard-0.safetensors", "manifest.json"
FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a part that is a pipe": (_replaced(lambda path: os.mkfifo(path), PART_FILE), "is not a regular file"),
    "a part that is a link to a device": (
        _replaced(lambda path: path.symlink_to("/dev/zero"), PART_FILE),
        "is not a regular file",
    ),
    "a part that is a folder": (_replaced(lambda path: path.mkdir(), PART_FILE), "is not a regular file"),
    "a part of a terabyte": (_replaced(_long, PART_FILE), "has 1099511627776 bytes, not"),
    "a manifest that is a pipe": (_replaced(lambda path: os.mkfifo(path), MANIFEST_FILE), "is not a regular file"),
    "a manifest that is a link": (
        _replaced(lambda path: path.symlink_to("../00000001-10-f1/manifest.json"), MANIFEST_FILE),
        "is not a regular file",
    ),
    "a manifest that is a link to a folder": (
        _replaced(lambda path: path.symlink_to("/usr"), MANIFEST_FILE),
        "is not a regular file",
    ),
    "a manifest of a terabyte": (_replaced(_long, MANIFEST_FILE), "has 1099511627776 bytes; a manifest"),
    "parameters that are NaN": (with_number("parameters"), "of 'parameters' is nan"),
    "a slot that is NaN": (with_number("slots/mean_square"), "of 'slots/mean_square' is nan"),
    "a slot below zero": (with_number("slots/mean_square", -1.0), "its optimizer slot mean_square contains -1"),
    "no parameters": (without_array("parameters"), "has nothing for parameters"),
    "a huge shape": (with_a_huge_shape, "which numpy does not support"),
}
"""By name: a change of the folder of a checkpoint with one shard, and a part of the expected error."""


def all_forgeries() -> dict[str, tuple[Callable[[Path], None], str]]:
    """Return all changes, of manifests and of files, as changes of the checkpoint's folder."""
    of_manifests = {
        name: ((lambda checkpoint, change=change: forge(checkpoint, change)), sentence)
        for name, (change, sentence) in MANIFESTS.items()
    }
    return {**of_manifests, **FILES}


def duplicated(checkpoint: Path, number: int) -> Path:
    """Copy a checkpoint under another number, with a valid manifest. Return the folder of the copy."""
    _, _, rest = checkpoint.name.partition("-")
    copied = checkpoint.with_name(f"{number:08d}-{rest}")
    shutil.copytree(checkpoint, copied)

    def change(manifest: dict[str, Any]) -> None:
        manifest["id"] = copied.name
        for name, part in manifest["parts"].items():
            part["key"] = f"{copied.name}/{name}.safetensors"

    forge(copied, change)
    return copied
