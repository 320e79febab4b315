"""The credentials of a replay server's port."""

from __future__ import annotations

from relaax.configuration import ReplayServerSection
from relaax.configuration.roles import REPLAY_TOKEN
from relaax.replay import replay_pb2 as pb
from relaax.server.grpc_port.certificate_roles import SERVER, role_of
from relaax.server.grpc_port.credentials import Credentials, port_credentials
from relaax.server.grpc_port.guard import token_sentences
from relaax.server.security.tls import REPLAY_SERVER, replay_server_token

_KEYS = "replay_server_token_file of relaax-rlx-server and relaax-learner"
_SENTENCES = token_sentences("replay server", _KEYS, REPLAY_TOKEN)
_SERVICE = pb.DESCRIPTOR.services_by_name["ReplayService"]
_OF_WORKERS = frozenset(
    f"/{_SERVICE.full_name}/{method.name}" for method in _SERVICE.methods if method.name != "GetStatus"
)
_REFUSAL = (
    "the certificate that was shown is a server's (its extended key usage has serverAuth), and a worker's is asked "
    "for: one with clientAuth alone, or without that extension; see replay_server_certificate of relaax-rlx-server and "
    "relaax-learner"
)


def read_replay_credentials(settings: ReplayServerSection) -> Credentials:
    """Read the files that the configuration names. Raises ConfigurationError."""
    return port_credentials(settings, REPLAY_SERVER, replay_server_token(settings), _SENTENCES, certificate_refusal)


def certificate_refusal(method: str, certificate: bytes) -> str | None:
    """Return why the owner of this certificate (PEM) may not call this method; None if it may."""
    return _REFUSAL if method in _OF_WORKERS and role_of(certificate) == SERVER else None
