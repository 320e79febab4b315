"""The credentials of a parameter server's port, and the methods that each kind of certificate may call."""

from __future__ import annotations

from relaax.configuration import ParameterServerSection
from relaax.configuration.roles import WORKERS_TOKEN
from relaax.parameters import parameter_server_pb2 as pb
from relaax.server.parameter_server.coordination import coordination_pb2
from relaax.server.ports.guard import SERVER, WORKER, Credentials, port_credentials, role_of, token_refusals
from relaax.server.security.tls import PARAMETER_SERVER, parameter_server_token

_JOIN = coordination_pb2.DESCRIPTOR.services_by_name["CoordinationService"].methods_by_name["Join"]
JOIN = f"/{_JOIN.containing_service.full_name}/{_JOIN.name}"
"""The method that shards call to join shard 0. Its stream has no time limit."""
_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"]
_OF_WORKERS = frozenset(
    f"/{_SERVICE.full_name}/{method.name}" for method in _SERVICE.methods if method.name != "GetStatus"
)
_REFUSALS = {
    SERVER: "the certificate of the call is a server's (its extended key usage has serverAuth), but this method needs "
    "a worker's: one with clientAuth alone, or without that extension; see "
    "relaax-rlx-server.parameter_server_certificate",
    WORKER: "the certificate of the call is a worker's (its extended key usage has no serverAuth), but this method "
    "needs a server's: one with serverAuth and clientAuth, or without that extension; see "
    "relaax-parameter-server.tls_certificate",
}


def refusal(method: str, certificate: bytes) -> str | None:
    """Return why the owner of this certificate (PEM) must not call this method; None if it may."""
    needed = WORKER if method in _OF_WORKERS else SERVER if method == JOIN else None
    role = None if needed is None else role_of(certificate)
    return None if role in (None, needed) else _REFUSALS[role]


SENTENCES = token_refusals("parameter server", "relaax-rlx-server.parameter_server_token_file", WORKERS_TOKEN)
"""Error messages for callers without the token."""


def read_credentials(settings: ParameterServerSection) -> Credentials:
    """Return the port's credentials, from the files that the configuration names. Raises ConfigurationError."""
    return port_credentials(settings, PARAMETER_SERVER, parameter_server_token(settings), SENTENCES, refusal)
