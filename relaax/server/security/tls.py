"""Certificates and tokens that the configuration of a server names, read and checked at startup."""

from __future__ import annotations

import logging
import ssl
from datetime import datetime, timedelta, timezone
from pathlib import Path

from relaax.configuration import ConfigurationError, ParameterServerSection, ReplayServerSection, RlxServerSection
from relaax.configuration.key_types import expand_home
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, WORKERS_TOKEN
from relaax.files import read_bounded
from relaax.server.security.tokens import read_token
from relaax.tls import client_context

_log = logging.getLogger(__name__)

PARAMETER_SERVER, REPLAY_SERVER = "relaax-parameter-server", "relaax-replay-server"
RLX_SERVER, LEARNER = "relaax-rlx-server", "relaax-learner"
SOON = timedelta(days=14)


def parameter_server_token(settings: ParameterServerSection) -> str | None:
    """Return the token that workers and shards must present. Raises ConfigurationError."""
    return read_token(settings.token_file, f"{PARAMETER_SERVER}.token_file", WORKERS_TOKEN)


def replay_server_token(settings: ReplayServerSection) -> str | None:
    """Return the token that workers and learners must present to a replay server. Raises ConfigurationError."""
    return read_token(settings.token_file, f"{REPLAY_SERVER}.token_file", REPLAY_TOKEN)


def rlx_server_token(settings: RlxServerSection) -> str | None:
    """Return the token that environments must present. Raises ConfigurationError."""
    return read_token(settings.token_file, f"{RLX_SERVER}.token_file", ENVIRONMENTS_TOKEN)


def rlx_server_context(settings: RlxServerSection) -> ssl.SSLContext | None:
    """Return the TLS context of the port for environments; None without TLS. Raises ConfigurationError."""
    keys = f"{RLX_SERVER}.tls_certificate", f"{RLX_SERVER}.tls_key"
    context = server_context(settings.tls_certificate, settings.tls_key, *keys)
    if context is not None:
        context.num_tickets = 0  # sessions cannot be resumed: each worker is a separate process
    return context


def server_context(
    certificate: str | None, key: str | None, certificate_key: str, key_key: str
) -> ssl.SSLContext | None:
    """Return a server's context, TLS 1.2 or later; None without a certificate. Raises ConfigurationError.

    `certificate_key` and `key_key` name the keys or options of the two files, for messages.
    """
    if key_pair(certificate, key, certificate_key, key_key) is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(_path(certificate, certificate_key), _path(key, key_key))
    return context


def key_pair(
    certificate: str | None, key: str | None, certificate_key: str, key_key: str
) -> tuple[bytes, bytes] | None:
    """Return a certificate and its private key (PEM); None if none are configured.

    Raises ConfigurationError if they cannot be read, do not match, or have expired.
    """
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing, there = (certificate_key, key_key) if certificate is None else (key_key, certificate_key)
        raise ConfigurationError(f"{missing}: required if {there} is set")
    chain, secret = _read(certificate, certificate_key), _read(key, key_key)
    _check_dates(chain, certificate, certificate_key)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_path(certificate, certificate_key), _path(key, key_key), password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        why = getattr(error, "reason", None) or str(error)
        if why == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(f"{key_key}: {key} is not the key of the certificate {certificate}") from None
        raise ConfigurationError(f"{key_key}: {key} is not a usable private key (PEM): {why}") from None
    return chain, secret


def authority(file: str | None, key: str) -> bytes | None:
    """Return the certificates (PEM) of an authority; None if none is configured. Raises ConfigurationError."""
    if file is None:
        return None
    found = _read(file, key)
    _check_dates(found, file, key)
    try:
        client_context(found.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise ConfigurationError(f"{key}: {file} has no usable certificate (PEM)") from None
    return found


def _check_dates(pem: bytes, file: str, key: str) -> None:
    from cryptography import x509  # slow to import, and most servers have no certificate

    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        raise ConfigurationError(f"{key}: {file} does not contain a certificate (PEM)") from None
    ends, now = certificate.not_valid_after_utc, datetime.now(timezone.utc)
    if ends < now:
        raise ConfigurationError(f"{key}: the certificate {file} expired on {ends:%Y-%m-%d}; make a new one")
    if certificate.not_valid_before_utc > now:
        begins = certificate.not_valid_before_utc
        raise ConfigurationError(f"{key}: the certificate {file} is not valid before {begins:%Y-%m-%d %H:%M} UTC")
    if ends - now < SOON:
        _log.warning("%s: renew the certificate %s, which expires on %s", key, file, f"{ends:%Y-%m-%d}")


def _read(file: str, key: str) -> bytes:
    try:
        return read_bounded(_path(file, key))
    except OSError as error:
        raise ConfigurationError(f"{key}: the TLS file {file} cannot be read: {error.strerror}") from None


def _path(file: str | None, key: str) -> Path:
    assert file is not None
    return expand_home(file, key)


def _no_password() -> str:
    raise ValueError("it is encrypted, but a server cannot ask for a password")
