"""Authentication of a port's callers, by the token of each call and by the role of a certificate."""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn
from urllib.parse import unquote

import grpc

from relaax.configuration import ConfigurationError, ParameterServerSection, ReplayServerSection
from relaax.server.security.strikes import Strikes
from relaax.server.security.tls import authority, key_pair
from relaax.server.security.tokens import Token
from relaax.transport.channel import AUTHORIZATION

_log = logging.getLogger(__name__)

OPEN = frozenset({"/grpc.health.v1.Health/Check"})
"""Methods that need no token. A health checker has none, and the answer is only whether the server serves."""
LOGGED = 20
"""Number of refused calls of an address within a minute after which its refused calls are not logged for a minute."""
NO_TOKEN, WRONG_TOKEN = "no token", "wrong token"
_BEARER = "Bearer "


def token_refusals(server: str, key: str, variable: str) -> Mapping[str, str]:
    """Return the error messages for callers without the token. They configure it by `key` or `variable`."""
    return {
        NO_TOKEN: f"this {server} requires a token, but the call has none: set {key} or the environment variable "
        f"{variable}",
        WRONG_TOKEN: f"the token of the call is not this {server}'s: see {key} and the environment variable {variable}",
    }


class Refusals:
    """Refused calls: they are aborted, logged and counted. Thread-safe."""

    def __init__(self, on_refused: Callable[[str], None] = lambda peer: None) -> None:
        """`on_refused` is called with the peer of each refused call, by any thread."""
        self._on_refused = on_refused
        self._strikes = Strikes(LOGGED)
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """Refused calls so far, by reason."""
        with self._lock:
            return dict(self._counts)

    def refuse(self, why: str, sentence: str, context: Any) -> NoReturn:
        """Abort this call. `why` is logged; `sentence` is the error message for the caller."""
        peer = context.peer()
        host = host_of(peer)
        with self._lock:
            self._counts[why] += 1
        self._on_refused(peer)
        last = self._strikes.add(host)
        if last:
            _log.warning(
                "refused %d calls from %s in a minute, the last one: %s; further refusals are not logged for a minute",
                LOGGED,
                host,
                why,
            )
        elif not self._strikes.is_blocked(host):
            _log.warning("refused a call from %s: %s", host, why)
        context.abort(grpc.StatusCode.UNAUTHENTICATED, sentence)
        raise AssertionError("abort raises")


class Guard(grpc.ServerInterceptor):  # type: ignore[type-arg]  # it is generic in its stubs only
    """An interceptor that aborts calls without the token, before their messages are read.

    `sentences`: see `token_refusals`.
    """

    def __init__(self, token: Token, refusals: Refusals, sentences: Mapping[str, str]) -> None:
        self._token = token
        self._refusals = {
            why: _refusing_handler(partial(refusals.refuse, why, sentence)) for why, sentence in sentences.items()
        }

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        if handler_call_details.method in OPEN:
            return continuation(handler_call_details)
        shown = next((value for key, value in handler_call_details.invocation_metadata if key == AUTHORIZATION), None)
        if shown is None:
            return self._refusals[NO_TOKEN]
        if not isinstance(shown, str) or not self._token.matches(shown.removeprefix(_BEARER)):
            return self._refusals[WRONG_TOKEN]
        return continuation(handler_call_details)


def _refusing_handler(refuse: Callable[[Any], NoReturn]) -> Any:
    """Return a handler that refuses a call without reading it.

    It is a handler of streams, because gRPC reads the request of any other call before it calls the handler.
    """

    def behavior(_messages: Iterator[bytes], context: Any) -> NoReturn:
        refuse(context)

    return grpc.stream_unary_rpc_method_handler(behavior)


def host_of(peer: str) -> str:
    """Return the host of a peer in gRPC's notation, such as ipv4:10.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer


CERTIFICATE = "x509_pem_cert"
"""gRPC's key of the caller's certificate in the authentication context of a call."""
WORKER, SERVER = "worker", "server"


@functools.lru_cache(maxsize=1024)
def role_of(certificate: bytes) -> str | None:
    """Return the role of a certificate (PEM): `SERVER` if its extended key usage has serverAuth, else `WORKER`.

    Return None if it has no extended key usage.
    """
    from cryptography import x509  # slow to import, and most servers require no certificate
    from cryptography.x509.oid import ExtendedKeyUsageOID

    extensions = x509.load_pem_x509_certificate(certificate).extensions
    try:
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None
    return SERVER if ExtendedKeyUsageOID.SERVER_AUTH in uses else WORKER


WRONG_CERTIFICATE = "a certificate of another role"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a port. `tls` and `token` are None if not configured. `mutual`: callers need a certificate.

    sentences: the error messages for callers without the token.
    refusal: returns why the owner of a certificate (PEM) must not call a method; None if it may.
    """

    tls: grpc.ServerCredentials | None = field(default=None, repr=False)
    token: Token | None = None
    mutual: bool = False
    sentences: Mapping[str, str] = field(default_factory=dict, repr=False)
    refusal: Callable[[str, bytes], str | None] = field(default=lambda method, certificate: None, repr=False)

    @property
    def authenticate(self) -> bool:
        """Whether callers must authenticate."""
        return self.token is not None or self.mutual

    def guards(self, refusals: Refusals) -> list[Guard]:
        """Return the interceptors that check the token."""
        return [Guard(self.token, refusals, self.sentences)] if self.token is not None else []

    def admit(self, refusals: Refusals, method: str, context: grpc.ServicerContext) -> None:
        """Abort a call if the caller's certificate is not for this method."""
        if self.mutual:
            shown: Mapping[str, Sequence[bytes]] = context.auth_context()  # type: ignore[assignment]
            sentence = self.refusal(method, shown[CERTIFICATE][0])
            if sentence is not None:
                refusals.refuse(WRONG_CERTIFICATE, sentence, context)


def port_credentials(
    settings: ParameterServerSection | ReplayServerSection,
    section: str,
    secret: str | None,
    sentences: Mapping[str, str],
    refusal: Callable[[str, bytes], str | None],
) -> Credentials:
    """Return the credentials of a port from the files that a `section` of the configuration names.

    `secret`: the token, if there is one. Raises ConfigurationError.
    """
    names = tuple(f"{section}.{name}" for name in ("tls_certificate", "tls_key", "tls_client_ca"))
    token = None if secret is None else Token(secret)
    pair = key_pair(settings.tls_certificate, settings.tls_key, names[0], names[1])
    clients = authority(settings.tls_client_ca, names[2])
    if pair is None:
        if clients is not None:
            raise ConfigurationError(f"{names[2]}: client certificates need TLS: set {names[0]}")
        return Credentials(token=token, sentences=sentences)
    chain, key = pair
    tls = grpc.ssl_server_credentials([(key, chain)], clients, clients is not None)
    return Credentials(tls, token, clients is not None, sentences, refusal)
