"""TLS on both sides of a connection: its requirements and the meaning of its errors."""

from __future__ import annotations

import ssl

NO_TLS = "it does not speak TLS"
# Explanations by a part of OpenSSL's name for the reason. An ALERT is the peer's message about an error of this side.
_REASONS = (
    ("CERTIFICATE_REQUIRED", "it requires a client certificate, and none was sent"),
    ("ALERT_UNKNOWN_CA", "it does not trust the authority that signed the client certificate"),
    ("ALERT_CERTIFICATE_EXPIRED", "it rejects the client certificate, which has expired"),
    ("ALERT_CERTIFICATE", "it rejects the client certificate"),
    ("ALERT_BAD_CERTIFICATE", "it rejects the client certificate"),
    ("ALERT_PROTOCOL_VERSION", "it does not support TLS 1.2 or later"),
    ("UNSUPPORTED_PROTOCOL", "it does not support TLS 1.2 or later"),
    ("WRONG_VERSION_NUMBER", NO_TLS),
    ("RECORD_LAYER_FAILURE", NO_TLS),
    ("HTTP_REQUEST", NO_TLS),
)


def reason_of(error: OSError) -> str | None:
    """Return why TLS with the peer ("it") fails, as a clause; None if a retry may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        return next((sentence for sign, sentence in _REASONS if sign in name), None)
    return None


def client_context(authority: str | None = None) -> ssl.SSLContext:
    """Return a client's context: TLS 1.2 or later, with the server's certificate and name checked.

    `authority`: certificates (PEM) to trust, by default the system's.
    Raises ssl.SSLError if they are not certificates.
    """
    context = ssl.create_default_context(cadata=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
