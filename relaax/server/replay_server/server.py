"""A running replay server: its gRPC port, shared memory and status port, and how they start and stop."""

from __future__ import annotations

import logging
from typing import get_args

from relaax.configuration import ReplayServerSection
from relaax.configuration.roles import REPLAY_TOKEN
from relaax.replay import replay_pb2 as pb
from relaax.replay.spec import Field, Remover, TableSpec
from relaax.replay.table.table import Table
from relaax.replay.wire import MAX_MESSAGE, add_to_server
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.ports.guard import SERVER, Credentials, port_credentials, role_of, token_refusals
from relaax.server.ports.local_server import LocalServer
from relaax.server.ports.local_session import SharedMemoryOffers
from relaax.server.ports.port import CallCounter, GrpcPort
from relaax.server.ports.shared_budget import SharedBudget
from relaax.server.replay_server.grpc_service import SERVICE, ReplayGrpcService
from relaax.server.replay_server.prometheus import replay_status_server
from relaax.server.replay_server.replay_session import replay_admission
from relaax.server.replay_server.service import ReplayService, shared_bytes
from relaax.server.replay_server.table_checkpoints import TableCheckpoints
from relaax.server.security.tls import REPLAY_SERVER, replay_server_token
from relaax.transport.process_resources import keep_freed_memory

_KEYS = "replay_server_token_file of relaax-rlx-server and relaax-learner"
_SENTENCES = token_refusals("replay server", _KEYS, REPLAY_TOKEN)
_SERVICE = pb.DESCRIPTOR.services_by_name["ReplayService"]
_WORKER_METHODS = frozenset(
    f"/{_SERVICE.full_name}/{method.name}" for method in _SERVICE.methods if method.name != "GetStatus"
)
_SERVER_CERTIFICATE_ERROR = (
    "the certificate is a server's (its extended key usage has serverAuth), but replay calls require a worker's: use "
    "one with clientAuth alone, or without that extension; see replay_server_certificate of relaax-rlx-server and "
    "relaax-learner"
)


def read_replay_credentials(settings: ReplayServerSection) -> Credentials:
    """Read the files that the configuration names. Raises ConfigurationError."""
    return port_credentials(settings, REPLAY_SERVER, replay_server_token(settings), _SENTENCES, certificate_refusal)


def certificate_refusal(method: str, certificate: bytes) -> str | None:
    """Return why the owner of `certificate` (PEM) may not call `method`; None if it may."""
    return _SERVER_CERTIFICATE_ERROR if method in _WORKER_METHODS and role_of(certificate) == SERVER else None


_log = logging.getLogger(__name__)
SWEEP_SECONDS = 1.0
DRAIN_SECONDS = 2.0


class ReplayServer:
    """A server of `service` at `address` that runs until `ends` has a reason. Raises AddressError.

    checkpoints: the checkpoints of the tables, if configured.
    """

    def __init__(
        self,
        service: ReplayService,
        address: str,
        ends: EndRequests,
        credentials: Credentials,
        status_bind: str | None = None,
        checkpoints: TableCheckpoints | None = None,
    ) -> None:
        self._service = service
        self._ends = ends
        self._checkpoints = checkpoints
        calls, local_calls = CallCounter(), CallCounter()
        self._port = GrpcPort(SERVICE, MAX_MESSAGE, credentials, calls)
        offers = SharedMemoryOffers()
        add_to_server(ReplayGrpcService(service, offers), self._port.server)
        self.shared = SharedBudget(shared_bytes(service.memory))
        """The budget of memory that local writers and samplers share with this server."""
        self._local = LocalServer(offers, replay_admission(service, offers, local_calls, self.shared))
        self.address = self._port.bind(address)
        self._status = None
        if status_bind is not None:
            by_transport = {"grpc": calls, "shared_memory": local_calls}
            self._status = replay_status_server(status_bind, service, self._port, by_transport, offers, checkpoints)

    @property
    def status_address(self) -> str | None:
        """HOST:PORT of /healthz and /metrics, if configured."""
        return self._status.address if self._status else None

    def start(self) -> None:
        """Start to serve."""
        keep_freed_memory(MAX_MESSAGE)
        _load_kernels()
        if self._status:
            self._status.start()
        self._local.start()
        self._port.start()
        self._port.health.serve(True)
        if self._checkpoints:
            self._checkpoints.start()

    def run(self) -> tuple[Reason, bool]:
        """Serve until the end. Return the reason, and whether the last checkpoint, if configured, was saved."""
        while (reason := self._ends.get(timeout=SWEEP_SECONDS)) is None:
            self._service.sweep()
            self.shared.sweep()
        _log.info("replay server is stopping: %s", reason.name.lower())
        self._port.health.end()
        stopped = self._port.server.stop(DRAIN_SECONDS)
        self._local.stop(DRAIN_SECONDS)
        stopped.wait()
        self._port.protection.stop()
        safe = self._checkpoints is None or self._checkpoints.finish()
        if self._status:
            self._status.close()
        return reason, safe


def _load_kernels() -> None:
    """Load the kernels of tables, so that the first caller need not wait."""
    fields = {"stack": Field("uint8", (1, 1, 1), frames=1)}
    for remover in get_args(Remover):
        Table(TableSpec("kernels", fields, 1, "prioritized", remover=remover, frame=(1, 1, 1)), seed=0)
