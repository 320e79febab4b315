"""A certificate authority for TLS between RELAAX's processes (elliptic curve P-256, PEM)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL = ("localhost", "127.0.0.1", "::1")
_SKEW = timedelta(hours=1)  # clocks of other machines may be slow


class Authority:
    """An authority whose certificates are valid for `days` days; if negative, they have expired already."""

    def __init__(self, days: float, name: str = "RELAAX authority") -> None:
        self._days = days
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        builder = (
            _builder(self._name, self._name, self._key, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = self._certificate.public_bytes(serialization.Encoding.PEM)
        self.key = _pem(self._key)

    def issue(self, name: str, hosts: Sequence[str] = (), days: float | None = None) -> tuple[bytes, bytes]:
        """Return a certificate and its private key (PEM). With `hosts` (names and IP addresses), it is for a server.

        A server's certificate is valid for a client too, because shards connect to each other. Raises ValueError if a
        host is invalid.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = (
            _builder(_name(name), self._name, key, self._days if days is None else days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    ends = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - _SKEW)
        .not_valid_after(ends)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        if not host or not host.isascii() or any(not (c.isalnum() or c in "-._*") for c in host):
            raise ValueError(f"{host!r} is neither a host name nor an IP address") from None
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
