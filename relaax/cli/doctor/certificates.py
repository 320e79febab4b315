"""Check that tokens and certificates exist, are readable, have sane permissions, match, and remain valid."""

from __future__ import annotations

import ipaddress
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from relaax.cli.doctor.finding import Finding, Subject, ok, warning, wrong
from relaax.configuration import (
    Configuration,
    ConfigurationError,
    LearnerSection,
    ParameterServerSection,
    ReplayServerSection,
    RlxServerSection,
)
from relaax.configuration.key_types import expand_home
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, WORKERS_TOKEN
from relaax.files import read_bounded
from relaax.server.address import split_address
from relaax.server.rlx_server.clients.accounts import KEY, ClientAccounts, read_authentication
from relaax.server.security import tls
from relaax.server.security.tls import LEARNER, PARAMETER_SERVER, REPLAY_SERVER, RLX_SERVER
from relaax.server.security.tokens import read_token

_KEYS = "`relaax keys DIR` makes tokens and certificates"
_CALLERS = {RLX_SERVER: "workers", LEARNER: "learners"}


def tokens(subject: Subject) -> Iterator[Finding]:
    """Check the token of each port, and the tokens that workers and learners send."""
    found = subject.configuration
    known: dict[str, str | None] = {}
    ports = _ports(found)
    token_keys = [("relaax-rlx-server.token_file", found.rlx_server.token_file, ENVIRONMENTS_TOKEN)]
    for port in ports:
        token_keys += [(f"{port.section}.token_file", port.settings.token_file, port.variable)]
        for section, settings in port.used_by:
            file = getattr(settings, f"{port.prefix}_token_file")
            token_keys += [(f"{section}.{port.prefix}_token_file", file, port.variable)]
    for key, file, variable in token_keys:
        try:
            known[key] = read_token(file, key, variable)
        except ConfigurationError as error:
            yield wrong(str(error), _KEYS)
            continue
        if known[key] is not None:
            yield _permissions(key, file) or ok(f"{key}: a token is set")
    yield from _named_clients(found.rlx_server)
    for port in ports:
        own = f"{port.section}.token_file"
        for section, _ in port.used_by:
            sent = f"{section}.{port.prefix}_token_file"
            if known.get(own) is not None and sent in known and known[own] != known[sent]:
                way_out = f"set {sent} to the file that {own} names"
                yield wrong(
                    f"{port.title} requires a token, and {_CALLERS[section]} would send another or none", way_out
                )


@dataclass(frozen=True)
class _Port:
    """A gRPC port, and the sections of its clients. Their keys for this port begin with `prefix`."""

    section: str
    title: str
    prefix: str
    variable: str
    settings: ParameterServerSection | ReplayServerSection
    used_by: Sequence[tuple[str, RlxServerSection | LearnerSection]]


def _ports(found: Configuration) -> list[_Port]:
    """Return the port of the parameter server and, if there are any, of replay servers."""
    users: list[tuple[str, RlxServerSection | LearnerSection]] = [(RLX_SERVER, found.rlx_server)]
    if found.learner.learners:
        users.append((LEARNER, found.learner))
    server, replay = found.parameter_server, found.replay_server
    ports = [_Port(PARAMETER_SERVER, "the parameter server", "parameter_server", WORKERS_TOKEN, server, users)]
    if replay.shards or found.rlx_server.replay_server:
        ports.append(_Port(REPLAY_SERVER, "the replay server", "replay_server", REPLAY_TOKEN, replay, users))
    return ports


def _named_clients(rlx: RlxServerSection) -> Iterator[Finding]:
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
    path = expand_home(file)
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(f"{key}: users other than its owner may access {file} (mode {mode:03o})", f"chmod 600 {file}")
    return None


def certificates(subject: Subject) -> Iterator[Finding]:
    """Check the certificates of all servers, of workers and of learners."""
    found = subject.configuration
    server, rlx = found.parameter_server, found.rlx_server
    yield from _pair(f"{RLX_SERVER}.tls_certificate", rlx.tls_certificate, rlx.tls_key, rlx.bind)
    for port in _ports(found):
        its = port.settings
        yield from _pair(f"{port.section}.tls_certificate", its.tls_certificate, its.tls_key, its.bind)
        yield from _authority(f"{port.section}.tls_client_ca", its.tls_client_ca)
        for section, settings in port.used_by:
            yield from _caller(port, f"{section}.{port.prefix}", _CALLERS[section], settings)
    yield from _authority("relaax-parameter-server.tls_ca", server.tls_ca, server.tls_certificate)
    yield from _dependent_keys(found)


def _caller(port: _Port, keys: str, callers: str, settings: RlxServerSection | LearnerSection) -> Iterator[Finding]:
    """Check the certificate and the authority of workers or learners for a port. `keys`: prefix of their keys."""
    authority = getattr(settings, f"{port.prefix}_ca")
    own, secret = (getattr(settings, f"{port.prefix}_{key}") for key in ("certificate", "key"))
    yield from _authority(f"{keys}_ca", authority, port.settings.tls_certificate)
    yield from _pair(f"{keys}_certificate", own, secret, None)
    if own is not None and port.settings.tls_client_ca is not None:
        yield from _authority(f"{port.section}.tls_client_ca", port.settings.tls_client_ca, own)
    if own is not None and authority is None:
        yield wrong(f"{keys}_certificate: sent only over TLS", f"set {keys}_ca")
    if port.settings.tls_certificate is not None and authority is None:
        way_out = f"set {keys}_ca to the authority that signed the certificate"
        yield warning(f"{port.title} uses TLS, and {callers} would not", way_out)


def _dependent_keys(found: Configuration) -> Iterator[Finding]:
    """Check for keys that require another key."""
    server = found.parameter_server
    for port in _ports(found):
        if port.settings.tls_client_ca is not None and port.settings.tls_certificate is None:
            sentence = f"{port.section}.tls_client_ca: clients send certificates only over TLS"
            yield wrong(sentence, f"set {port.section}.tls_certificate")
    if server.shards > 1 and server.tls_certificate is not None and server.tls_ca is None:
        sentence = f"{PARAMETER_SERVER}.tls_ca: required by shards, which connect to the first one over TLS"
        yield wrong(sentence, "set it to the authority that signed the certificate")


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
            f"connect by one of these names, or make a certificate with the name {host}; {_KEYS}",
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
    return address.is_unspecified or str(address) in names  # 0.0.0.0 is not an address to connect to


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
        own = x509.load_pem_x509_certificate(read_bounded(expand_home(signed)))
    except (OSError, ValueError):
        return  # reported by the check of that certificate
    if any(_signed(own, authority) for authority in x509.load_pem_x509_certificates(pem)):
        yield ok(f"{key}: {file} has signed {signed}")
    else:
        yield wrong(f"{key}: {file} has not signed {signed}", f"use the authority that has signed it; {_KEYS}")


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return certificate == authority
    return True
