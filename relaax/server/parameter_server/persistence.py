"""A model as a checkpoint, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import without_bounds
from relaax.bridge.moments import Moments
from relaax.checkpoint import Arrays, Checkpoint
from relaax.server.parameter_server.model import ModelRefused
from relaax.server.parameter_server.shard import Counters, Shard, Snapshot

PART = "shard-0"
_SLOT = "slots/"
_STATISTIC = "statistics/"
_MUST_AGREE = ("algorithm", "observation_space", "action_space")


def shard_arrays(snapshot: Snapshot) -> Arrays:
    """The arrays of a shard's part: the parameters, each slot of the optimizer, and each statistic's moments."""
    arrays: dict[str, npt.NDArray[np.generic]] = {"parameters": snapshot.parameters}
    arrays.update((_SLOT + name, slot) for name, slot in snapshot.slots.items())
    for name, moments in snapshot.statistics.items():
        parts = {"count": np.array([moments.count]), "mean": moments.mean, "m2": moments.m2}
        arrays.update((f"{_STATISTIC}{name}/{part}", array) for part, array in parts.items())
    return arrays


def describe_shard(shard: Shard, snapshot: Snapshot) -> dict[str, Any]:
    """What the manifest says of a shard."""
    return {
        "part": PART,
        "start": shard.start,
        "end": shard.start + shard.size,
        "version": snapshot.counters.version,
        "counters": asdict(snapshot.counters),
        "ledger": dict(snapshot.ledger),
    }


def restore_shard(shard: Shard, checkpoint: Checkpoint) -> None:
    """Bring parameters, slots, statistics, counters and ledger back. Raises ModelRefused where they do not fit."""
    described = checkpoint.manifest["shards"][0]
    arrays = checkpoint.parts[described["part"]]
    slots = {name.removeprefix(_SLOT): array for name, array in arrays.items() if name.startswith(_SLOT)}
    parameters: npt.NDArray[np.float32] = np.asarray(arrays["parameters"], np.float32)
    try:
        counters = Counters(**described["counters"])
        shard.restore(Snapshot(parameters, slots, counters, described["ledger"], _statistics(arrays)))
    except ValueError as error:
        raise ModelRefused(
            f"checkpoint {checkpoint.checkpoint_id} does not fit this configuration: {error}; use another checkpoint "
            "directory, or the configuration that it was made with"
        ) from None


def _statistics(arrays: Arrays) -> dict[str, Moments]:
    found: dict[str, dict[str, npt.NDArray[Any]]] = {}
    for key, array in arrays.items():
        if key.startswith(_STATISTIC):
            name, _, part = key.removeprefix(_STATISTIC).rpartition("/")
            found.setdefault(name, {})[part] = array
    return {name: Moments(float(parts["count"][0]), parts["mean"], parts["m2"]) for name, parts in found.items()}


def check_origin(checkpoint: Checkpoint, fingerprint: str) -> None:
    """Refuse a checkpoint of another algorithm or other spaces; the rest of a configuration may have changed.

    Raises ModelRefused.
    """
    there: dict[str, Any] = dict(checkpoint.manifest["fingerprint"])
    there["observation_space"] = without_bounds(there["observation_space"])  # older versions wrote them
    here: Mapping[str, Any] = json.loads(fingerprint)
    for key in _MUST_AGREE:
        if there.get(key) != here.get(key):
            raise ModelRefused(
                f"checkpoint {checkpoint.checkpoint_id} has {key} {_short(there.get(key))}, this server has "
                f"{_short(here.get(key))}: use another checkpoint directory, or the configuration that it was made with"
            )


def _short(value: object, limit: int = 200) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
