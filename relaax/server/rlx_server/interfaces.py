"""Protocols of the listener's collaborators, so that it need not import them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Spawner(Protocol):
    """Start workers (see `relaax.server.rlx_server.spawner.ForkSpawner`)."""

    def spawn(
        self, sock: socket.socket, refusal: str | None, training_finished: bool, close_in_child: Callable[[], None]
    ) -> tuple[int, int]: ...

    def stop_workers(self) -> None: ...


class Admitter(Protocol):
    """Decide whether there is room (see `relaax.server.rlx_server.admission.Admission`)."""

    def refusal(self, workers: list[int], counts: bool = True) -> str | None: ...

    @property
    def refused(self) -> Mapping[str, int]: ...


class StatusPort(Protocol):
    """Publish the server's status (see `relaax.server.rlx_server.status.StatusLine`)."""

    @property
    def due(self) -> bool: ...

    def tell(self, sample: Mapping[str, Any]) -> None: ...

    def close_in_child(self) -> None: ...

    def stop(self) -> None: ...
