"""What an RLX server asks of those who connect, before anything else is done for them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from relaax.configuration import RlxServerSection
from relaax.server.tls import rlx_server_context, rlx_server_token
from relaax.server.tokens import Token

NO_TOKEN = "this server asks for a token, and none was shown: --token-file or RELAAX_TOKEN gives a client one"
WRONG_TOKEN = "the token that was shown is not this server's"
SPEAKS_TLS = "this port speaks TLS, and the client does not: --tls makes it"
NO_TLS = "this port does not speak TLS, and the client does"


@dataclass(frozen=True, slots=True)
class Gate:
    """`token` is None where none is asked for, `tls` where the port speaks plain text."""

    token: Token | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)

    @property
    def asks(self) -> bool:
        """Whether a client has to prove anything, or to keep secrets."""
        return self.token is not None or self.tls is not None

    def refusal(self, shown: str) -> str | None:
        """Why a client that has shown this token is not let in; None where it is."""
        if self.token is None or self.token.matches(shown):
            return None
        return WRONG_TOKEN if shown else NO_TOKEN


OPEN = Gate()
"""Asks for nothing."""


def read_gate(settings: RlxServerSection) -> Gate:
    """As the configuration says. Raises ConfigurationError."""
    secret = rlx_server_token(settings)
    return Gate(None if secret is None else Token(secret), rlx_server_context(settings))
