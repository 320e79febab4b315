"""Keys for a service, made by `relaax keys`, and keys that a service must not accept."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.server.security.certificates import LOCAL, Authority
from relaax.tls import client_context

OTHER_TOKEN = "another-secret-of-somebody-else"


class Keys:
    """The keys that `relaax keys` has written to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = CliRunner().invoke(app, ["keys", str(folder)])
        assert made.exit_code == 0, made.output
        self.output = made.output

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    @property
    def token(self) -> str:
        return self.read("token").decode().strip()

    @property
    def parameter_server_token(self) -> str:
        return self.read("parameter-server-token").decode().strip()

    def context(self) -> ssl.SSLContext:
        """Return a client's TLS context that trusts the authority."""
        return client_context(self.read("ca.pem").decode())

    def rlx_port(self) -> dict[str, Any]:
        """Return the configuration keys of relaax-rlx-server for its own port."""
        return {
            "token_file": self.path("token"),
            "tls_certificate": self.path("server.pem"),
            "tls_key": self.path("server-key.pem"),
        }

    def rlx_server(self) -> dict[str, Any]:
        """Return the configuration keys of relaax-rlx-server for its own port and for its workers."""
        return {
            **self.rlx_port(),
            **self.learner(),
        }

    def learner(self) -> dict[str, Any]:
        """Return the configuration keys of relaax-learner. Workers have the same keys."""
        return {
            key: self.path(name.format(server))
            for server in ("parameter", "replay")
            for key, name in {
                f"{server}_server_token_file": "{}-server-token",
                f"{server}_server_ca": "ca.pem",
                f"{server}_server_certificate": "worker.pem",
                f"{server}_server_key": "worker-key.pem",
            }.items()
        }

    def replay_server(self) -> dict[str, Any]:
        """Return the configuration keys of relaax-replay-server."""
        return {
            "token_file": self.path("replay-server-token"),
            "tls_certificate": self.path("server.pem"),
            "tls_key": self.path("server-key.pem"),
            "tls_client_ca": self.path("ca.pem"),
        }

    def parameter_server(self) -> dict[str, Any]:
        """Return the configuration keys of relaax-parameter-server."""
        return {
            "token_file": self.path("parameter-server-token"),
            "tls_certificate": self.path("server.pem"),
            "tls_key": self.path("server-key.pem"),
            "tls_client_ca": self.path("ca.pem"),
            "tls_ca": self.path("ca.pem"),
        }

    def put(self, name: str, pair: tuple[bytes, bytes]) -> tuple[str, str]:
        """Write a certificate and its key to files. Return their paths."""
        paths = self.folder / f"{name}.pem", self.folder / f"{name}-key.pem"
        for path, content in zip(paths, pair, strict=True):
            path.write_bytes(content)
        return str(paths[0]), str(paths[1])

    def issue(self, name: str, uses: Sequence[x509.ObjectIdentifier]) -> tuple[bytes, bytes]:
        """Issue a certificate of the authority, and its key. `uses`: extended key usages; empty for no extension."""
        authority = x509.load_pem_x509_certificate(self.read("ca.pem"))
        signing = serialization.load_pem_private_key(self.read("ca-key.pem"), None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(timezone.utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
        )
        if uses:
            builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        certificate = builder.sign(signing, hashes.SHA256())
        return (
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def unknown_authority(days: float = 30) -> tuple[Authority, tuple[bytes, bytes]]:
    """Return an authority that no process trusts, and a server's certificate issued by it."""
    authority = Authority(days)
    return authority, authority.issue("somebody", LOCAL)
