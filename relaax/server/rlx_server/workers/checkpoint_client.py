"""Parameters from checkpoints, for workers that only act: no parameter server is needed."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable

import numpy as np

from relaax.algorithm_base import ConfigBase
from relaax.checkpoint import Checkpoint, CheckpointManager, Damaged, Store, StoreError
from relaax.checkpoint.checkpoint import full_vector
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

LOOK_SECONDS = 5.0
"""Interval at which a worker looks for a newer checkpoint."""


class CheckpointClient(ParameterClientBase):
    """Serves the newest checkpoint of a store, and newer ones as they are published. Nothing is learned or reported.

    A checkpoint that is damaged, or was deleted meanwhile, is left out: the one before it serves on.
    """

    def __init__(self, store: Store, config: ConfigBase, clock: Callable[[], float] = time.monotonic) -> None:
        """`config`: of the agents; what must not change when a run is resumed is that of the checkpoints."""
        self._config = config
        self.metrics = NoMetrics()
        self._manager = CheckpointManager(store)
        self._clock = clock
        self._fingerprint = ""
        self._looked_at = 0.0
        self._pulled: Pulled | None = None
        self._checkpoint_id = ""

    def register(self, registration: Registration) -> Registered:
        """Take the newest checkpoint. Raises as `pull` does, and ParameterServerError if it is of another model."""
        self._fingerprint = registration.fingerprint
        pulled = self.pull()
        # Nobody allots indices: those of different sessions are far apart, so that they draw differently.
        digest = hashlib.sha256(registration.session_id.encode()).digest()
        first = int.from_bytes(digest[:4], "little") >> 2
        actors = tuple(range(first, first + registration.environments))
        return Registered(len(pulled.parameters), actors, pulled.global_step)

    def pull(self) -> Pulled:
        """Return the newest checkpoint's parameters. Raises ParameterServerUnavailable while there are none."""
        now = self._clock()
        if self._pulled is None or now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look()
        if self._pulled is None:
            raise ParameterServerUnavailable(
                f"there is no checkpoint in {self._manager.store.location} that can be used: train first, or wait"
            )
        return self._pulled

    def push(
        self, gradient: FlatVector | None, env_steps: int, want_parameters: bool = True, *, withheld: bool = False
    ) -> Pushed:
        """Raise ParameterServerError: a checkpoint does not learn."""
        raise ParameterServerError("this server serves from checkpoints, which do not learn")

    def flush(self) -> None:
        """Do nothing: there is nobody to report to."""

    @property
    def global_step(self) -> int:
        return self._pulled.global_step if self._pulled is not None else 0

    def close(self) -> None:
        """Do nothing."""

    def _look(self) -> None:
        """Take the newest checkpoint that can be used, if it is another one."""
        try:
            published = self._manager.published()
        except StoreError as error:
            _log.warning("the checkpoints cannot be listed: %s", error)
            return
        for checkpoint_id in published:
            if checkpoint_id == self._checkpoint_id:
                return
            try:
                checkpoint = self._manager.load(checkpoint_id)
                pulled = self._pulled_of(checkpoint)
            except (Damaged, StoreError, ValueError, LookupError) as error:
                _log.warning("checkpoint %s cannot be used: %s", checkpoint_id, error)
                continue
            _log.info("serving checkpoint %s at global step %d", checkpoint_id, pulled.global_step)
            self._pulled, self._checkpoint_id = pulled, checkpoint_id
            return

    def _pulled_of(self, checkpoint: Checkpoint) -> Pulled:
        try:
            check_origin(checkpoint, self._fingerprint, "the client's")
        except ModelRefused as error:
            raise ParameterServerError(str(error)) from None
        there = checkpoint.manifest["fingerprint"].get("configuration", {})
        changed = changed_keys(there, self._config)
        if changed:
            which = "; ".join(map(str, changed))
            raise ParameterServerError(f"checkpoint {checkpoint.checkpoint_id} is of another model: {which}")
        parameters = np.asarray(full_vector(checkpoint, PARAMETERS), np.float32)
        parameters.flags.writeable = False
        arrays = {name: array for part in checkpoint.parts.values() for name, array in part.items()}
        version = self._pulled.version + 1 if self._pulled is not None else 0
        manifest = checkpoint.manifest
        frames = int(manifest.get("frames", 0))
        return Pulled(parameters, version, int(manifest["global_step"]), from_arrays(arrays), frames)
