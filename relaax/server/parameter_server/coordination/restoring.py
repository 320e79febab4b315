"""How a shard returns to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relaax.checkpoint import Checkpoint
from relaax.server.parameter_server.core import ParameterServerCore

Fingerprints = Callable[[Mapping[str, Any]], str]
"""From a checkpoint's manifest to the fingerprint of the model as configured now. Raises ModelRefused."""


def roll_back(
    core: ParameterServerCore, checkpoint: Checkpoint | None, fingerprints: Fingerprints, incarnation: int
) -> None:
    """Return to the checkpoint, or to before the first update where there is none. Raises ModelRefused and Damaged."""
    fingerprint = "" if checkpoint is None else fingerprints(checkpoint.manifest)
    core.roll_back(checkpoint, fingerprint, incarnation)
