"""Convert a checkpoint to a policy file."""

from __future__ import annotations

import numpy as np

from relaax.checkpoint import Checkpoint, Damaged
from relaax.checkpoint.checkpoint import whole
from relaax.configuration import redacted
from relaax.parameters.moments import STATISTICS
from relaax.policy.file import PARAMETERS, Description, to_file


def description_of(checkpoint: Checkpoint) -> Description:
    """Return the description of a checkpoint, without secrets. Raises Damaged if the manifest is incomplete."""
    manifest = checkpoint.manifest
    try:
        fingerprint = manifest["fingerprint"]
        return Description(
            fingerprint={**fingerprint, "configuration": redacted(fingerprint["configuration"])},
            configuration=redacted(manifest.get("configuration", {})),
            seed=int(manifest.get("seed", 0)),
            global_step=int(manifest["global_step"]),
            mean_return=manifest.get("mean_return"),
            checkpoint=checkpoint.checkpoint_id,
            time=float(manifest["time"]),
            versions=manifest.get("versions", {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"its manifest is incomplete: {error!r}") from None


def policy_of(checkpoint: Checkpoint) -> list[memoryview]:
    """Return the policy file of a checkpoint: its parameters from all shards, and its statistics. Raises Damaged."""
    parameters = np.asarray(whole(checkpoint, PARAMETERS), np.float32)
    arrays = {
        name: array for part in checkpoint.parts.values() for name, array in part.items() if name.startswith(STATISTICS)
    }
    return to_file(description_of(checkpoint), {PARAMETERS: parameters, **arrays})
