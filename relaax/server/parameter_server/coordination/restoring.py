"""Returning a shard to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from relaax.checkpoint import Checkpoint
from relaax.server.parameter_server.core import ParameterServerCore

Fingerprints = Callable[[Mapping[str, Any]], str]
"""Return the fingerprint of the configured model, given a checkpoint's manifest. Raises ModelRefused."""


def roll_back(
    core: ParameterServerCore, checkpoint: Checkpoint | None, fingerprints: Fingerprints, incarnation: int
) -> None:
    """Return to the checkpoint, or if it is None to before the first update. Raises ModelRefused and Damaged."""
    fingerprint = "" if checkpoint is None else fingerprints(checkpoint.manifest)
    core.roll_back(checkpoint, fingerprint, incarnation)
