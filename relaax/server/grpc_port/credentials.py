"""The credentials of a gRPC port, and those that it requires of callers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from relaax.configuration import ConfigurationError, ParameterServerSection, ReplayServerSection
from relaax.server.grpc_port.certificate_roles import CERTIFICATE
from relaax.server.grpc_port.guard import Guard, Refusals
from relaax.server.security.tls import authority, key_pair
from relaax.server.security.tokens import Token

WRONG_CERTIFICATE = "a certificate of another role"


@dataclass(frozen=True, slots=True)
class Credentials:
    """`tls` is None without TLS, `token` without one. `mutual`: callers must show a certificate.

    sentences: what callers without the token are told.
    refusal: returns why the owner of a certificate (PEM) may not call a method; None if it may.
    """

    tls: grpc.ServerCredentials | None = field(default=None, repr=False)
    token: Token | None = None
    mutual: bool = False
    sentences: Mapping[str, str] = field(default_factory=dict, repr=False)
    refusal: Callable[[str, bytes], str | None] = field(default=lambda method, certificate: None, repr=False)

    @property
    def authenticate(self) -> bool:
        """Whether peers must authenticate."""
        return self.token is not None or self.mutual

    def guards(self, refusals: Refusals) -> list[Guard]:
        """Return the interceptors of the server."""
        return [Guard(self.token, refusals, self.sentences)] if self.token is not None else []

    def admit(self, refusals: Refusals, method: str, context: grpc.ServicerContext) -> None:
        """End a call whose caller has shown a certificate that is not for this method."""
        if self.mutual:
            shown: Mapping[str, Sequence[bytes]] = context.auth_context()  # type: ignore[assignment]
            sentence = self.refusal(method, shown[CERTIFICATE][0])
            if sentence is not None:
                refusals.end(WRONG_CERTIFICATE, sentence, context)


def port_credentials(
    settings: ParameterServerSection | ReplayServerSection,
    section: str,
    secret: str | None,
    sentences: Mapping[str, str],
    refusal: Callable[[str, bytes], str | None],
) -> Credentials:
    """Read the files that a `section` of the configuration names. Raises ConfigurationError."""
    names = tuple(f"{section}.{name}" for name in ("tls_certificate", "tls_key", "tls_client_ca"))
    token = None if secret is None else Token(secret)
    pair = key_pair(settings.tls_certificate, settings.tls_key, names[0], names[1])
    clients = authority(settings.tls_client_ca, names[2])
    if pair is None:
        if clients is not None:
            raise ConfigurationError(f"{names[2]}: certificates are shown over TLS only: set {names[0]}")
        return Credentials(token=token, sentences=sentences)
    chain, key = pair
    tls = grpc.ssl_server_credentials([(key, chain)], clients, clients is not None)
    return Credentials(tls, token, clients is not None, sentences, refusal)
