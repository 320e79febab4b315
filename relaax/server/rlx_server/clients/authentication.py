"""Authentication of clients, which precedes everything else that an RLX server does for them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import NamedTuple

from relaax.configuration import RlxServerSection
from relaax.server.tls import rlx_server_context, rlx_server_token
from relaax.server.tokens import Token, digest

NO_TOKEN = "this server asks for a token, and none was shown: --token-file or RELAAX_TOKEN gives a client one"
WRONG_TOKEN = "the token that was shown is not this server's"
SPEAKS_TLS = "this port speaks TLS, and the client does not: --tls makes it"
NO_TLS = "this port does not speak TLS, and the client does"


class Identity(NamedTuple):
    """A client's name and the digest of its token; both are empty for an unnamed client."""

    name: str
    digest: str


NOBODY = Identity("", "")


@dataclass(frozen=True, slots=True)
class Authentication:
    """Required credentials: `token` is None if there is no common token, `tls` is None if the port is plain text.

    `names`: client names by the digests of their tokens in hex, updated with their file; None if there is no file.
    `origins`: of the web pages that may connect, beside those that this computer shows itself.
    """

    token: Token | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    names: dict[str, str] | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether a client must authenticate or encrypt."""
        return self.token is not None or self.tls is not None or self.names is not None

    def identified(self, shown: str) -> Identity | str:
        """Return the identity that this token proves; a sentence if the token is not valid."""
        if self.names is not None:
            shown_as = digest(shown).hex()  # no timing leak: nobody can choose the first bytes of a digest
            name = self.names.get(shown_as)
            if name is not None:
                return Identity(name, shown_as)
        if self.names is None if self.token is None else self.token.matches(shown):
            return NOBODY
        return WRONG_TOKEN if shown else NO_TOKEN


OPEN = Authentication()
"""Requires nothing."""


def read_authentication(settings: RlxServerSection, names: dict[str, str] | None = None) -> Authentication:
    """Return what the configuration requires; `names`: the known named clients. Raises ConfigurationError."""
    secret = rlx_server_token(settings)
    known = None if settings.clients_file is None else names or {}
    token = None if secret is None else Token(secret)
    return Authentication(token, rlx_server_context(settings), known, tuple(settings.origins))
