"""What an RLX server asks of those who connect, before anything else is done for them."""

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
    """A client's name and the digest of its token; of one without a name both are empty."""

    name: str
    digest: str


NOBODY = Identity("", "")


@dataclass(frozen=True, slots=True)
class Authentication:
    """`token` is None where no common one is asked for, `tls` where the port speaks plain text.

    `names`: of clients by the digests of their tokens in hex, changed as their file is; None where there is no file.
    """

    token: Token | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    names: dict[str, str] | None = field(default=None, repr=False)

    @property
    def asks(self) -> bool:
        """Whether a client has to prove anything, or to keep secrets."""
        return self.token is not None or self.tls is not None or self.names is not None

    def identified(self, shown: str) -> Identity | str:
        """Who has shown this token; a sentence where it lets nobody in."""
        if self.names is not None:
            shown_as = digest(shown).hex()  # looking for it tells nothing: nobody can choose how a digest begins
            name = self.names.get(shown_as)
            if name is not None:
                return Identity(name, shown_as)
        if self.names is None if self.token is None else self.token.matches(shown):
            return NOBODY
        return WRONG_TOKEN if shown else NO_TOKEN


OPEN = Authentication()
"""Asks for nothing."""


def read_authentication(settings: RlxServerSection, names: dict[str, str] | None = None) -> Authentication:
    """As the configuration says; of clients with names, `names` are those known. Raises ConfigurationError."""
    secret = rlx_server_token(settings)
    known = None if settings.clients_file is None else names or {}
    return Authentication(None if secret is None else Token(secret), rlx_server_context(settings), known)
