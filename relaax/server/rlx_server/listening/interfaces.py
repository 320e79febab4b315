"""The interface of spawners, so that the listener imports none of them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol


class Spawner(Protocol):
    """Start workers (see `relaax.server.rlx_server.workers.spawner.ForkSpawner`)."""

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]: ...

    def stop_workers(self) -> None: ...
