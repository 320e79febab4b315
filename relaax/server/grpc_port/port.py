"""A gRPC port with all that guards it: who may call, what holds it up, what was answered, how it is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent import futures
from functools import partial

import grpc

from relaax.server.address import AddressError, require_free, split_address
from relaax.server.grpc_port.call_counter import ANY, CallCounter
from relaax.server.grpc_port.credentials import Credentials
from relaax.server.grpc_port.guard import Refusals
from relaax.server.grpc_port.health import Health
from relaax.server.grpc_port.port_protection import PortProtection
from relaax.server.grpc_port.request_reader import THREADS
from relaax.transport.grpc_options import server_options

_CONNECTIONS = "grpc.max_allowed_incoming_connections"


class GrpcPort:
    """A gRPC server of one service, bound by `bind` once all is added to `server`.

    service: its full name, whose health is told. longest: bytes of a message at most. more_threads: beside those for
    calls. For `lost` and `lasting` see `PortProtection`.
    """

    def __init__(
        self,
        service: str,
        longest: int,
        credentials: Credentials,
        calls: CallCounter,
        more_threads: int = 0,
        lost: Callable[[str], None] = lambda worker_id: None,
        lasting: Collection[str] = (),
    ) -> None:
        self._credentials = credentials
        refusals = Refusals(self._note_refusal)
        self._calls = calls
        self.keeper = PortProtection(calls.count, partial(credentials.admit, refusals), lost, lasting)
        self.server = grpc.server(
            futures.ThreadPoolExecutor(THREADS + more_threads, thread_name_prefix="rpc"),
            interceptors=[self.keeper.reading, calls, *credentials.guards(refusals)],
            options=[*server_options(longest), (_CONNECTIONS, self.keeper.connections.most)],
        )
        self.health = Health(self.server, service)
        self.address = ""
        """HOST:PORT, once it is bound."""

    def _note_refusal(self, peer: str) -> None:
        self._calls.count(ANY, grpc.StatusCode.UNAUTHENTICATED)
        self.keeper.refused(peer)

    @property
    def serving(self) -> bool:
        """Whether callers are served, and find a thread."""
        return self.health.serving and not self.keeper.reading.jammed

    def bind(self, address: str) -> str:
        """Bind the port; return HOST:PORT. Raises AddressError."""
        require_free(address)
        host, _ = split_address(address)
        tls = self._credentials.tls
        try:
            port = self.server.add_secure_port(address, tls) if tls else self.server.add_insecure_port(address)
        except RuntimeError:
            port = 0
        if not port:
            raise AddressError(
                f"{address} cannot be listened at: it is in use or not of this machine; port 0 picks a free one"
            )
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self.address

    def start(self) -> None:
        """Start to answer."""
        self.server.start()
        self.keeper.start(split_address(self.address)[1])
