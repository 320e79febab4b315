"""Parameters from checkpoints, for workers that only act and need no parameter server."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable

import numpy as np

from relaax.algorithm_base import ConfigBase
from relaax.checkpoint import Checkpoint, CheckpointManager, Damaged, Store, StoreError
from relaax.checkpoint.checkpoint import full_vector
from relaax.configuration.lesson_sections import stored_curriculum
from relaax.hosting.fingerprint import changed_keys
from relaax.parameters.interfaces import (
    FlatVector,
    ParameterClientBase,
    ParameterServerError,
    ParameterServerUnavailable,
    Pulled,
    Pushed,
    Registered,
    Registration,
)
from relaax.parameters.moments import from_arrays
from relaax.policy.file import PARAMETERS
from relaax.policy.policy import NoMetrics
from relaax.server.parameter_server.shard.model import ModelRefused
from relaax.server.parameter_server.shard.persistence import check_origin

_log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
"""Interval at which a worker checks for a newer checkpoint."""


def unassigned_actors(registration: Registration) -> tuple[int, ...]:
    """Return actor indices without a server: sessions have indices far apart, so that their random numbers differ."""
    digest = hashlib.sha256(registration.session_id.encode()).digest()
    first = int.from_bytes(digest[:4], "little") >> 2
    return tuple(range(first, first + registration.environments))


class CheckpointClient(ParameterClientBase):
    """A parameters client that reads the newest checkpoint of a store, and newer ones when they are published.

    It neither trains nor reports metrics. A checkpoint that is damaged or has been deleted is skipped: the parameters
    of the previous one are kept.
    """

    def __init__(self, store: Store, config: ConfigBase, clock: Callable[[], float] = time.monotonic) -> None:
        """`config`: configuration of the agents. Keys that must not change on resume must match the checkpoint."""
        self._config = config
        self.metrics = NoMetrics()
        self._manager = CheckpointManager(store)
        self._clock = clock
        self._fingerprint = ""
        self._checked_at = 0.0
        self._pulled: Pulled | None = None
        self._checkpoint_id = ""

    def register(self, registration: Registration) -> Registered:
        """Load the newest checkpoint.

        Raises ParameterServerError if the model of the checkpoint is different, and the errors of `pull`.
        """
        self._fingerprint = registration.fingerprint
        pulled = self.pull()
        return Registered(len(pulled.parameters), unassigned_actors(registration), pulled.global_step)

    def pull(self) -> Pulled:
        """Return the parameters of the newest checkpoint. Raises ParameterServerUnavailable if there is none."""
        now = self._clock()
        if self._pulled is None or now - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._load_newest()
        if self._pulled is None:
            raise ParameterServerUnavailable(
                f"{self._manager.store.location} contains no usable checkpoint: train first, or wait for one"
            )
        return self._pulled

    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Pushed:
        """Raise ParameterServerError: checkpoints cannot be trained."""
        raise ParameterServerError("this server serves parameters from checkpoints, so it accepts no gradients")

    def flush(self) -> None:
        """Do nothing: no server receives metrics."""

    @property
    def global_step(self) -> int:
        return self._pulled.global_step if self._pulled is not None else 0

    def close(self) -> None:
        """Do nothing."""

    def _load_newest(self) -> None:
        """Load the newest usable checkpoint, unless it is loaded already."""
        try:
            published = self._manager.published()
        except StoreError as error:
            _log.warning("listing the checkpoints failed: %s", error)
            return
        for checkpoint_id in published:
            if checkpoint_id == self._checkpoint_id:
                return
            try:
                checkpoint = self._manager.load(checkpoint_id)
                version = self._pulled.version + 1 if self._pulled is not None else 0
                pulled = pulled_of(checkpoint, self._fingerprint, self._config, version)
            except (Damaged, StoreError, ValueError, LookupError) as error:
                _log.warning("skipped unusable checkpoint %s: %s", checkpoint_id, error)
                continue
            _log.info("serving parameters from checkpoint %s at global step %d", checkpoint_id, pulled.global_step)
            self._pulled, self._checkpoint_id = pulled, checkpoint_id
            curriculum = stored_curriculum(checkpoint.manifest.get("configuration", {}))
            self.edition = curriculum.final_edition if curriculum else None
            return


def pulled_of(checkpoint: Checkpoint, fingerprint: str, config: ConfigBase, version: int = 0) -> Pulled:
    """Return the parameters and statistics of a checkpoint, as a pull returns them.

    Raises ParameterServerError if the checkpoint is of another model, or if keys of `config` that must not change on
    resume have other values.
    """
    try:
        check_origin(checkpoint, fingerprint, "the client's")
    except ModelRefused as error:
        raise ParameterServerError(str(error)) from None
    there = checkpoint.manifest["fingerprint"].get("configuration", {})
    changed = changed_keys(there, config)
    if changed:
        which = "; ".join(map(str, changed))
        raise ParameterServerError(f"checkpoint {checkpoint.checkpoint_id} has a different configuration: {which}")
    parameters = np.asarray(full_vector(checkpoint, PARAMETERS), np.float32)
    parameters.flags.writeable = False
    arrays = {name: array for part in checkpoint.parts.values() for name, array in part.items()}
    manifest = checkpoint.manifest
    frames = int(manifest.get("frames", 0))
    return Pulled(parameters, version, int(manifest["global_step"]), from_arrays(arrays), frames)
