"""The roles of the certificates that callers show, by their extended key usage."""

from __future__ import annotations

import functools

CERTIFICATE = "x509_pem_cert"
"""gRPC's name of the caller's certificate in the context of a call."""
WORKER, SERVER = "worker", "server"


@functools.lru_cache(maxsize=1024)
def role_of(certificate: bytes) -> str | None:
    """Return `SERVER` if a certificate (PEM) is for servers, `WORKER` if it is not, and None if it does not say."""
    from cryptography import x509  # most servers ask for no certificate, and it is slow to load
    from cryptography.x509.oid import ExtendedKeyUsageOID

    extensions = x509.load_pem_x509_certificate(certificate).extensions
    try:
        uses = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return None
    return SERVER if ExtendedKeyUsageOID.SERVER_AUTH in uses else WORKER
