"""The roles of certificates on a parameter server's port, by their extended key usage."""

from __future__ import annotations

import functools

from relaax.parameters import parameter_server_pb2 as pb
from relaax.server.parameter_server.request_reader import JOIN

CERTIFICATE = "x509_pem_cert"
"""gRPC's name of the caller's certificate in the context of a call."""
WORKER, SERVER = "worker", "server"
_SERVICE = pb.DESCRIPTOR.services_by_name["ParameterServerService"]
_OF_WORKERS = frozenset(
    f"/{_SERVICE.full_name}/{method.name}" for method in _SERVICE.methods if method.name != "GetStatus"
)
_REFUSALS = {
    SERVER: "the certificate that was shown is a server's (its extended key usage has serverAuth), and a worker's is "
    "asked for: one with clientAuth alone, or without that extension; see "
    "relaax-rlx-server.parameter_server_certificate",
    WORKER: "the certificate that was shown is a worker's (its extended key usage has no serverAuth), and a shard "
    "shows a server's: one with serverAuth and clientAuth, or without that extension; see "
    "relaax-parameter-server.tls_certificate",
}


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


def refusal(method: str, certificate: bytes) -> str | None:
    """Return why the owner of this certificate (PEM) may not call this method; None if it may."""
    needed = WORKER if method in _OF_WORKERS else SERVER if method == JOIN else None
    role = None if needed is None else role_of(certificate)
    return None if role in (None, needed) else _REFUSALS[role]
