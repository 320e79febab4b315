"""Check that tokens and certificates exist, are readable, have sane permissions, match, and remain valid."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.configuration import ConfigurationError, ParameterServerSection, RlxServerSection
from relaax.configuration.roles import WORKERS_TOKEN
from relaax.server import tls
from relaax.server.address import split_address
from relaax.server.rlx_server.authentication import read_authentication
from relaax.server.rlx_server.client_accounts import KEY, ClientAccounts
from relaax.server.tls import PARAMETER_SERVER, RLX_SERVER
from relaax.server.tokens import read_token

_KEYS = "`relaax keys DIR` makes tokens and certificates"


def tokens(subject: Subject) -> Iterator[Finding]:
    """Check the token of each port, and the one that workers send."""
    server, rlx = subject.configuration.parameter_server, subject.configuration.rlx_server
    found: dict[str, str | None] = {}
    shown = "relaax-rlx-server.parameter_server_token_file"
    readers: dict[str, tuple[str | None, Callable[[], str | None]]] = {
        "relaax-parameter-server.token_file": (server.token_file, lambda: tls.parameter_server_token(server)),
        "relaax-rlx-server.token_file": (rlx.token_file, lambda: tls.rlx_server_token(rlx)),
        shown: (
            rlx.parameter_server_token_file,
            lambda: read_token(rlx.parameter_server_token_file, shown, WORKERS_TOKEN),
        ),
    }
    for key, (file, read) in readers.items():
        try:
            found[key] = read()
        except ConfigurationError as error:
            yield wrong(str(error), _KEYS)
            continue
        if found[key] is not None:
            yield _permissions(key, file) or ok(f"{key}: a token is set")
    yield from _named(rlx)
    asked, told = found.get("relaax-parameter-server.token_file"), found.get(shown)
    if len(found) == len(readers) and asked != told and asked is not None:
        way_out = f"set {shown} to the file that relaax-parameter-server.token_file names"
        yield wrong("the parameter server requires a token, and workers would send another or none", way_out)


def _named(rlx: RlxServerSection) -> Iterator[Finding]:
    """Check the file of named clients."""
    if rlx.clients_file is None:
        return
    try:
        clients = ClientAccounts(rlx.clients_file, read_authentication(rlx))
    except ConfigurationError as error:
        yield wrong(str(error), "`relaax keys DIR --client NAME` makes a token and its entry")
        return
    yield ok(f"{KEY}: {len(list(clients))} named clients")


def _permissions(key: str, file: str | None) -> Finding | None:
    if file is None:
        return None
    path = Path(file).expanduser()
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(f"{key}: users other than its owner may access {file} (mode {mode:03o})", f"chmod 600 {file}")
    return None


def certificates(subject: Subject) -> Iterator[Finding]:
    """Check the certificates of both servers and of the workers."""
    server, rlx = subject.configuration.parameter_server, subject.configuration.rlx_server
    section = "relaax-parameter-server"
    yield from _pair(f"{section}.tls_certificate", server.tls_certificate, server.tls_key, server.bind)
    yield from _authority(f"{section}.tls_client_ca", server.tls_client_ca)
    yield from _authority(f"{section}.tls_ca", server.tls_ca, server.tls_certificate)
    section = "relaax-rlx-server"
    yield from _pair(f"{section}.tls_certificate", rlx.tls_certificate, rlx.tls_key, rlx.bind)
    yield from _authority(f"{section}.parameter_server_ca", rlx.parameter_server_ca, server.tls_certificate)
    own = rlx.parameter_server_certificate
    yield from _pair(f"{section}.parameter_server_certificate", own, rlx.parameter_server_key, None)
    if own is not None and server.tls_client_ca is not None:
        yield from _authority("relaax-parameter-server.tls_client_ca", server.tls_client_ca, own)
    yield from _apart(server, rlx)
    if server.tls_certificate is not None and rlx.parameter_server_ca is None:
        way_out = "set relaax-rlx-server.parameter_server_ca to the authority that signed the certificate"
        yield warning("the parameter server uses TLS, and workers would not", way_out)


def _apart(server: ParameterServerSection, rlx: RlxServerSection) -> Iterator[Finding]:
    """Check for keys that are refused without another one."""
    if server.tls_client_ca is not None and server.tls_certificate is None:
        sentence = f"{PARAMETER_SERVER}.tls_client_ca: clients send certificates only over TLS"
        yield wrong(sentence, f"set {PARAMETER_SERVER}.tls_certificate")
    if server.shards > 1 and server.tls_certificate is not None and server.tls_ca is None:
        sentence = f"{PARAMETER_SERVER}.tls_ca: required by shards, which connect to the first one over TLS"
        yield wrong(sentence, "set it to the authority that signed the certificate")
    if rlx.parameter_server_certificate is not None and rlx.parameter_server_ca is None:
        sentence = f"{RLX_SERVER}.parameter_server_certificate: sent only over TLS"
        yield wrong(sentence, f"set {RLX_SERVER}.parameter_server_ca")


def _pair(key: str, certificate: str | None, secret: str | None, bind: str | None) -> Iterator[Finding]:
    second = f"{key.removesuffix('certificate')}key"
    try:
        pair = tls.key_pair(certificate, secret, key, second)
    except ConfigurationError as error:
        yield wrong(str(error), _KEYS)
        return
    if pair is None:
        return
    own = x509.load_pem_x509_certificate(pair[0])
    days = (own.not_valid_after_utc - datetime.now(timezone.utc)).days
    names = _names(own)
    if permission := _permissions(second, secret):
        yield permission
    if days < tls.SOON.days:
        yield warning(f"{key}: {certificate} expires in {days} days", f"renew it in time: {_KEYS}")
    if bind is not None and not _covers(names, split_address(bind)[0]):
        host = split_address(bind)[0]
        yield warning(
            f"{key}: {certificate} is for {', '.join(names) or 'no name'}, the server binds {host}: clients connecting "
            "by that address do not trust it",
            f"connect by one of its names, or make one with this name; {_KEYS}",
        )
    else:
        yield ok(f"{key}: {certificate} fits its key and is valid for {days} days")


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses)]


def _covers(names: list[str], host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        parent = host.partition(".")[2]
        return host in names or f"*.{parent}" in names
    return address.is_unspecified or str(address) in names  # nobody connects to 0.0.0.0


def _authority(key: str, file: str | None, signed: str | None = None) -> Iterator[Finding]:
    """Check an authority. `signed`: the file of a certificate that it must have signed."""
    try:
        pem = tls.authority(file, key)
    except ConfigurationError as error:
        yield wrong(str(error), _KEYS)
        return
    if pem is None:
        return
    if signed is None:
        yield ok(f"{key}: {file} is an authority")
        return
    try:
        own = x509.load_pem_x509_certificate(Path(signed).expanduser().read_bytes())
    except (OSError, ValueError):
        return  # reported by the check of that certificate
    if any(_signed(own, authority) for authority in x509.load_pem_x509_certificates(pem)):
        yield ok(f"{key}: {file} has signed {signed}")
    else:
        yield wrong(f"{key}: {file} has not signed {signed}", f"use the authority that has; {_KEYS}")


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return certificate == authority
    return True
