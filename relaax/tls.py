"""TLS on both sides of a connection: its requirements and the meaning of its errors."""

from __future__ import annotations

import ssl

NO_TLS = "it does not speak TLS"
# By OpenSSL's name of the reason. An alert is the other side's complaint about this one.
_REASONS = (
    ("CERTIFICATE_REQUIRED", "it asks for a certificate, and none was shown"),
    ("ALERT_UNKNOWN_CA", "it does not know the authority that signed the certificate that it was shown"),
    ("ALERT_CERTIFICATE_EXPIRED", "it says that the certificate that it was shown has expired"),
    ("ALERT_CERTIFICATE", "it does not accept the certificate that it was shown"),
    ("ALERT_BAD_CERTIFICATE", "it does not accept the certificate that it was shown"),
    ("ALERT_PROTOCOL_VERSION", "it speaks no version of TLS from 1.2 on"),
    ("UNSUPPORTED_PROTOCOL", "it speaks no version of TLS from 1.2 on"),
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

    `authority`: certificates (PEM) to trust; by default those that this system trusts.
    Raises ssl.SSLError if they are not certificates.
    """
    context = ssl.create_default_context(cadata=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
