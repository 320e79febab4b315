"""The roles of a parameter server: alone, as the first of several shards, or as another of them."""

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
    """Return to the checkpoint, or if it is None to before the first update. Raises ModelRefused and Damaged."""
    fingerprint = "" if checkpoint is None else fingerprints(checkpoint.manifest)
    core.roll_back(checkpoint, fingerprint, incarnation)


class Coordinator(ABC):
    """Decide when a shard serves workers, how its model's checkpoints are made, and in which order it ends.

    The server sets the callbacks before the start: `on_serving` receives whether workers are served; `save_now` saves a
    checkpoint and returns whether the newest state is safe; `on_refused` is called if no checkpoint is usable by all
    shards. `refusal` then says why.
    """

    threads = 0
    """Threads of the gRPC server that coordination occupies."""
    message_parameters = 0
    """Elements that fit into the longest message that coordination sends to this server."""

    def __init__(self) -> None:
        self.refusal = ""
        self.on_serving: Callable[[bool], None] = lambda serving: None
        self.save_now: Callable[[], bool] = lambda: True
        self.on_refused: Callable[[], None] = lambda: None

    @abstractmethod
    def start(self) -> None:
        """Start, once the port is open."""

    @abstractmethod
    def stop(self, reason: Reason, save: Callable[[], bool], stop_calls: Callable[[], None]) -> bool:
        """End before training has finished: stop updates, then `save` the last checkpoint, which thus contains every
        acknowledged update. Calls `stop_calls` once. Returns whether that checkpoint is safe.
        """

    def end(self, saved: bool) -> None:  # noqa: B027 - most have no other shards
        """Tell the other shards to end, and whether the last checkpoint is safe."""

    def add_to_server(self, server: grpc.Server) -> None:  # noqa: B027 - most serve only workers
        """Serve the other shards on the same port."""

    def checkpointer(self, create: Callable[..., Checkpointer], spool: Spool | None) -> Checkpointer | None:
        """Return the model's checkpointer, made by `create`; None if this shard saves none or checkpoints are off."""
        return None


class Alone(Coordinator):
    """Run the only shard of a model: it serves from the start."""

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
    """Return whether a last checkpoint is to be saved: a server that was refused was about to return to one."""
    return reason not in (Reason.SUPERSEDED, Reason.REFUSED)
