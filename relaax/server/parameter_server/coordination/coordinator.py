"""The coordination of a parameter server with other shards: alone, as shard 0, or as another shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from relaax.checkpoint import Checkpoint, CheckpointManager
from relaax.server.checkpoints.checkpointing import Checkpointer
from relaax.server.checkpoints.spool import Spool
from relaax.server.command.termination import Reason
from relaax.server.parameter_server.service.core import ParameterServerCore

Fingerprints = Callable[[Mapping[str, Any]], str]
"""Return the fingerprint of the configured model, given a checkpoint's manifest. Raises ModelRefused."""


def roll_back(
    core: ParameterServerCore, checkpoint: Checkpoint | None, fingerprints: Fingerprints, incarnation: int
) -> None:
    """Return to `checkpoint`; if it is None, to the state before the first update. Raises ModelRefused and Damaged."""
    fingerprint = "" if checkpoint is None else fingerprints(checkpoint.manifest)
    core.roll_back(checkpoint, fingerprint, incarnation)


class Coordinator(ABC):
    """The coordinator of a shard: when it serves workers, how its model's checkpoints are made, and how it ends.

    The server sets the callbacks before the start: `on_serving` receives whether workers are served. `save_now` saves a
    checkpoint and returns whether the newest state is safe. `on_refused` is called if no checkpoint is usable by all
    shards; `refusal` is then the reason.
    """

    threads = 0
    """Number of threads of the gRPC server that coordination occupies."""
    message_parameters = 0
    """Maximum elements of a coordination message to this server."""

    def __init__(self) -> None:
        self.refusal = ""
        self.on_serving: Callable[[bool], None] = lambda serving: None
        self.save_now: Callable[[], bool] = lambda: True
        self.on_refused: Callable[[], None] = lambda: None

    @abstractmethod
    def start(self) -> None:
        """Start. Called when the port is open."""

    @abstractmethod
    def stop(self, reason: Reason, save: Callable[[], bool], stop_calls: Callable[[], None]) -> bool:
        """End before training has finished: stop updates, `save` the last checkpoint, and call `stop_calls` once.

        The checkpoint contains every acknowledged update. Return whether it is safe.
        """

    def end(self, saved: bool) -> None:  # noqa: B027 - only shard 0 has others
        """Order the other shards to end. `saved`: whether the last checkpoint is safe."""

    def add_to_server(self, server: grpc.Server) -> None:  # noqa: B027 - only shard 0 serves others
        """Serve the other shards on the same port."""

    def checkpointer(self, create: Callable[..., Checkpointer], spool: Spool | None) -> Checkpointer | None:
        """Return the model's checkpointer from `create`; None if this shard does not save checkpoints."""
        return None


class Alone(Coordinator):
    """The coordinator of a model's only shard, which serves from the start."""

    def __init__(self, core: ParameterServerCore, manager: CheckpointManager | None = None) -> None:
        super().__init__()
        self._core = core
        self._manager = manager

    def start(self) -> None:
        self.on_serving(True)

    def stop(self, reason: Reason, save: Callable[[], bool], stop_calls: Callable[[], None]) -> bool:
        stop_calls()
        return may_save(reason) and save()

    def checkpointer(self, create: Callable[..., Checkpointer], spool: Spool | None) -> Checkpointer | None:
        if self._manager is None:
            return None
        core = self._core
        return create(self._manager, core.cut, mark=core.mark, saved=core.mark(), spool=spool)


def may_save(reason: Reason) -> bool:
    """Return whether to save a last checkpoint.

    A superseded server may not. A refused server was about to drop its state and return to an earlier checkpoint.
    """
    return reason not in (Reason.SUPERSEDED, Reason.REFUSED)
