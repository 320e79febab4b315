"""The credentials of a parameter server's port."""

from __future__ import annotations

from relaax.configuration import ParameterServerSection
from relaax.configuration.roles import WORKERS_TOKEN
from relaax.server.grpc_port.credentials import Credentials, port_credentials
from relaax.server.grpc_port.guard import token_sentences
from relaax.server.parameter_server.roles import refusal
from relaax.server.security.tls import PARAMETER_SERVER, parameter_server_token

SENTENCES = token_sentences("parameter server", "relaax-rlx-server.parameter_server_token_file", WORKERS_TOKEN)
"""What callers without the token are told."""


def read_credentials(settings: ParameterServerSection) -> Credentials:
    """Read the files that the configuration names. Raises ConfigurationError."""
    return port_credentials(settings, PARAMETER_SERVER, parameter_server_token(settings), SENTENCES, refusal)
