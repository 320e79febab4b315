"""A model as a checkpoint, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.checkpoint import Arrays, Checkpoint
from relaax.server.parameter_server.model import ModelRefused
from relaax.server.parameter_server.shard import Counters, Shard, Snapshot

PART = "shard-0"
_SLOT = "slots/"
_MUST_AGREE = ("algorithm", "observation_space", "action_space")


def shard_arrays(snapshot: Snapshot) -> Arrays:
    """The arrays of a shard's part: the parameters, and each slot of the optimizer."""
    return {"parameters": snapshot.parameters, **{_SLOT + name: slot for name, slot in snapshot.slots.items()}}


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
    """Bring parameters, slots, counters and ledger back. Raises ModelRefused where they do not fit."""
    described = checkpoint.manifest["shards"][0]
    arrays = checkpoint.parts[described["part"]]
    slots = {name.removeprefix(_SLOT): array for name, array in arrays.items() if name.startswith(_SLOT)}
    parameters: npt.NDArray[np.float32] = np.asarray(arrays["parameters"], np.float32)
    try:
        shard.restore(Snapshot(parameters, slots, Counters(**described["counters"]), described["ledger"]))
    except ValueError as error:
        raise ModelRefused(
            f"checkpoint {checkpoint.checkpoint_id} does not fit this configuration: {error}; use another checkpoint "
            "directory, or the configuration that it was made with"
        ) from None


def check_origin(checkpoint: Checkpoint, fingerprint: str) -> None:
    """Refuse a checkpoint of another algorithm or other spaces; the rest of a configuration may have changed.

    Raises ModelRefused.
    """
    there: Mapping[str, Any] = checkpoint.manifest["fingerprint"]
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
