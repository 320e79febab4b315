"""What both sides of a connection over TLS have in common: what it asks for, and what its errors mean."""

from __future__ import annotations

import ssl

# By OpenSSL's name of the reason. An alert is what the other side says of us.
_REASONS = (
    ("CERTIFICATE_REQUIRED", "it asks for a certificate, and none was shown"),
    ("ALERT_UNKNOWN_CA", "it does not know the authority that signed the certificate that it was shown"),
    ("ALERT_CERTIFICATE_EXPIRED", "it says that the certificate that it was shown has expired"),
    ("ALERT_CERTIFICATE", "it does not accept the certificate that it was shown"),
    ("ALERT_BAD_CERTIFICATE", "it does not accept the certificate that it was shown"),
    ("ALERT_PROTOCOL_VERSION", "it speaks no version of TLS from 1.2 on"),
    ("UNSUPPORTED_PROTOCOL", "it speaks no version of TLS from 1.2 on"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ("RECORD_LAYER_FAILURE", "it does not speak TLS"),
    ("HTTP_REQUEST", "it does not speak TLS"),
)


def reason_of(error: OSError) -> str | None:
    """Why TLS with the peer, "it", cannot be: half a sentence. None where trying again may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be trusted: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        name = error.reason or ""
        return next((sentence for sign, sentence in _REASONS if sign in name), None)
    return None


def client_context(authority: str | None = None) -> ssl.SSLContext:
    """For a client: TLS 1.2 or later, the server's certificate and name checked.

    `authority`: certificates (PEM) to check them by; by default those that this system trusts.
    Raises ssl.SSLError where they are none.
    """
    context = ssl.create_default_context(cadata=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
