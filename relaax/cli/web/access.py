"""The token and the certificate of the live page."""

from __future__ import annotations

import ssl

from relaax.configuration import ConfigurationError
from relaax.configuration.roles import WEB_TOKEN
from relaax.server.address import is_loopback, split_address
from relaax.server.security.tls import server_context
from relaax.server.security.tokens import Token, read_token


def page_access(
    bind: str, token_file: str | None, certificate: str | None, key: str | None, prefix: str = "--page-"
) -> tuple[Token | None, ssl.SSLContext | None]:
    """Return the token of the page and its TLS context, each None if missing.

    `prefix`: of the options, or of the keys that name the files, for messages.

    Raises ConfigurationError and AddressError, also for an address that other machines can reach without a token.
    """
    file_name = f"{prefix}token-file" if prefix.startswith("--") else f"{prefix}token_file"
    secret = read_token(token_file, file_name, WEB_TOKEN)
    if secret is None and not is_loopback(split_address(bind)[0]):
        raise ConfigurationError(
            f"the live page at {bind} can be reached from other machines, and anybody could see the run: require a "
            f"token with {file_name} (`relaax keys DIR` makes one), or bind localhost and forward its port with ssh"
        )
    context = server_context(certificate, key, f"{prefix}certificate", f"{prefix}key")
    return None if secret is None else Token(secret), context
