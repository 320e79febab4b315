"""Authentication of clients, and the file of named clients with tokens and quotas, which is reloaded when it changes.

An RLX server authenticates each client before it does anything else for the client.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, model_validator

from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.configuration.key_types import expand_home
from relaax.configuration.validation import Section, validate_section
from relaax.configuration.yaml_file import read_yaml
from relaax.server.security.tls import rlx_server_context, rlx_server_token
from relaax.server.security.tokens import CLIENT_NAME, CLIENT_NAME_RULE, Token, digest, read_token

_log = logging.getLogger(__name__)

KEY = "relaax-rlx-server.clients_file"
MAX_CLIENTS = 1024
CHECK_SECONDS = 1.0
NO_TOKEN = "this server requires a token, and the client sent none: set --token-file or RELAAX_TOKEN at the client"
WRONG_TOKEN = "the client's token is not valid for this server"
SPEAKS_TLS = "this port uses TLS, and the client does not: start it with --tls"
NO_TLS = "this port does not use TLS, and the client does"


class Identity(NamedTuple):
    """A client's name and the digest of its token; both are empty for an unnamed client."""

    name: str
    digest: str


UNNAMED_CLIENT = Identity("", "")


@dataclass(frozen=True, slots=True)
class Authentication:
    """The credentials that a server requires.

    `token`: the token of unnamed clients; None if there is none. `tls`: None if the port does not use TLS.
    `names`: client names by the digests of their tokens in hex, updated when the file of clients is reloaded; None if
    there is no file.
    `origins`: origins of web pages that may connect, in addition to pages of localhost.
    """

    token: Token | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    names: dict[str, str] | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether a client must authenticate or use TLS."""
        return self.token is not None or self.tls is not None or self.names is not None

    def identify(self, token: str) -> Identity | str:
        """Return the identity that `token` proves, or an error text if it is not valid."""
        if self.names is not None:
            hex_digest = digest(token).hex()  # no timing leak: a client cannot choose the first bytes of a digest
            name = self.names.get(hex_digest)
            if name is not None:
                return Identity(name, hex_digest)
        if self.names is None if self.token is None else self.token.matches(token):
            return UNNAMED_CLIENT
        return WRONG_TOKEN if token else NO_TOKEN


OPEN = Authentication()
"""No authentication and no TLS."""


def read_authentication(settings: RlxServerSection, names: dict[str, str] | None = None) -> Authentication:
    """Return the credentials that the configuration requires. Raises ConfigurationError.

    `names`: client names by digest, if the file of clients has been read already.
    """
    secret = rlx_server_token(settings)
    known = None if settings.clients_file is None else names or {}
    token = None if secret is None else Token(secret)
    return Authentication(token, rlx_server_context(settings), known, tuple(settings.origins))


class ClientEntry(Section):
    """The entry of one client in the file. Without quotas, only the limits of the server apply."""

    token_file: str | None = Field(None, description="File with its token, relative to the folder of this file.")
    token_sha256: Any = Field(None, description="SHA-256 of its token in hex.")  # errors must not quote it
    max_connections: int | None = Field(None, ge=1, description="Maximum simultaneous connections.")
    max_environments: int | None = Field(None, ge=1, description="Maximum environments of all its connections.")
    steps_per_second: float | None = Field(None, gt=0, description="Environment steps of all its connections.")
    bytes_per_second: float | None = Field(None, gt=0, description="Bytes that all its connections send and receive.")

    @model_validator(mode="after")
    def _one_token(self) -> ClientEntry:
        if (self.token_file is None) == (self.token_sha256 is None):
            raise ValueError(
                "set exactly one of token-file and token-sha256; `relaax keys DIR --client NAME` makes both"
            )
        return self


@dataclass(frozen=True, slots=True)
class ClientAccount:
    """A named client: the digest of its token in hex, and its quotas; None means no quota."""

    name: str
    digest: str
    max_connections: int | None = None
    max_environments: int | None = None
    steps_per_second: float | None = None
    bytes_per_second: float | None = None


class ClientAccounts:
    """The clients of a file, by name. `authentication.names` is updated with the file. `clock` gives seconds."""

    def __init__(
        self, file: str | None, authentication: Authentication, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`file`: None if there are no named clients. Raises ConfigurationError."""
        self._path = None if file is None else expand_home(file, KEY)
        self._authentication = authentication
        self._clock = clock
        self._next_check = clock() + CHECK_SECONDS
        self._by_name: dict[str, ClientAccount] = {}
        self._files: tuple[Path, ...] = ()
        self._read_signature: object = None
        self._seen_signature: object = None
        self._reload_requested = False
        if self._path is not None:
            self._read(self._path)

    def get(self, name: str) -> ClientAccount | None:
        """Return the client with this name; None if the file has none."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[ClientAccount]:
        return iter(self._by_name.values())

    def request_reload(self) -> None:
        """Make the next `reload_if_changed` read the file, even if it has not changed."""
        self._reload_requested = True

    def reload_if_changed(self) -> bool:
        """Reload the file if it or a token file has changed. Return whether it was reloaded.

        If the new file is invalid, an error is logged and the previous clients are kept.
        """
        if self._path is None or (not self._reload_requested and self._clock() < self._next_check):
            return False
        self._next_check = self._clock() + CHECK_SECONDS
        signature, before = self._signature(), self._seen_signature
        self._seen_signature = signature
        if not self._reload_requested and (signature == self._read_signature or signature != before):
            return False
        self._reload_requested = False
        try:
            self._read(self._path)
        except ConfigurationError as error:
            self._read_signature = signature
            _log.error("%s; keeping the previous %d clients", error, len(self._by_name))
            return False
        _log.info("reloaded the file of clients %s: %d clients", self._path, len(self._by_name))
        return True

    def _read(self, path: Path) -> None:
        before = _stamp(path)  # a write during the read is detected by the next check
        found, self._files = read_clients(path, self._authentication)
        self._by_name = {client.name: client for client in found}
        assert self._authentication.names is not None
        self._authentication.names.clear()
        self._authentication.names.update((client.digest, client.name) for client in found)
        self._read_signature = self._seen_signature = before, *map(_stamp, self._files)

    def _signature(self) -> tuple[object, ...]:
        assert self._path is not None
        return tuple(map(_stamp, (self._path, *self._files)))


def _stamp(path: Path) -> object:
    try:
        found = os.stat(path)
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_clients(path: Path, authentication: Authentication) -> tuple[list[ClientAccount], tuple[Path, ...]]:
    """Return the clients of a file, and the files with their tokens. Raises ConfigurationError."""
    where = f"{KEY}: {path}"
    try:
        data = read_yaml(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"{KEY}: {error}") from None
    if not isinstance(data, dict):
        raise ConfigurationError(f"{where}: expected client names with keys and values, or {{}} for no clients")
    if len(data) > MAX_CLIENTS:
        raise ConfigurationError(f"{where}: {len(data)} names exceed the maximum of {MAX_CLIENTS}")
    if path.stat().st_mode & stat.S_IWOTH:
        _log.warning("%s: every user of this machine can add clients: set mode 600 (chmod 600)", where)
    found: dict[str, ClientAccount] = {}
    files = []
    for name, entry in data.items():
        if not isinstance(name, str) or not re.fullmatch(CLIENT_NAME, name):
            raise ConfigurationError(f"{where}: {name!r} is not a valid client name: use {CLIENT_NAME_RULE}")
        given = validate_section(ClientEntry, entry, f"{where}: {name}")
        if given.token_file is not None:
            files.append(path.parent / expand_home(given.token_file, where))
            token = _digest_of(files[-1], f"{where}: {name}.token_file")
        else:
            token = str(given.token_sha256)
        if not re.fullmatch("[0-9a-fA-F]{64}", token):  # not quoted: it may be the token itself
            raise ConfigurationError(f"{where}: {name}.token_sha256: expected 64 hexadecimal digits in quotes")
        client = ClientAccount(name, token.lower(), **given.model_dump(exclude={"token_file", "token_sha256"}))
        other = found.setdefault(client.digest, client)
        if other is not client:
            raise ConfigurationError(f"{where}: {name} and {other.name} have the same token: create one for each")
        if authentication.token is not None and authentication.token.hex == client.digest:
            raise ConfigurationError(f"{where}: {name} has the token of unnamed clients: create a separate one")
    return list(found.values()), tuple(files)


def _digest_of(file: Path, key: str) -> str:
    secret = read_token(str(file), key, "")
    assert secret is not None
    return digest(secret).hex()
