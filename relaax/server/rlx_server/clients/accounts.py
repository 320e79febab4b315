"""Clients: how they authenticate, and those with names, tokens and quotas from a file that is reread as it changes.

Authentication precedes everything else that an RLX server does for a client.
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
from relaax.configuration.key_types import with_home
from relaax.configuration.validation import Section, validate_section
from relaax.configuration.yaml_file import read_yaml
from relaax.server.security.tls import rlx_server_context, rlx_server_token
from relaax.server.security.tokens import CLIENT_NAME, CLIENT_NAME_RULE, Token, digest, read_token

_log = logging.getLogger(__name__)

KEY = "relaax-rlx-server.clients_file"
MAX_CLIENTS = 1024
LOOK_SECONDS = 1.0
NO_TOKEN = "this server asks for a token, and none was shown: --token-file or RELAAX_TOKEN gives a client one"
WRONG_TOKEN = "the token that was shown is not this server's"
SPEAKS_TLS = "this port speaks TLS, and the client does not: --tls makes it"
NO_TLS = "this port does not speak TLS, and the client does"


class Identity(NamedTuple):
    """A client's name and the digest of its token; both are empty for an unnamed client."""

    name: str
    digest: str


NOBODY = Identity("", "")


@dataclass(frozen=True, slots=True)
class Authentication:
    """Required credentials: `token` is None if there is no common token, `tls` is None if the port is plain text.

    `names`: client names by the digests of their tokens in hex, updated with their file; None if there is no file.
    `origins`: of the web pages that may connect, beside those that this computer shows itself.
    """

    token: Token | None = None
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    names: dict[str, str] | None = field(default=None, repr=False)
    origins: tuple[str, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether a client must authenticate or encrypt."""
        return self.token is not None or self.tls is not None or self.names is not None

    def identified(self, shown: str) -> Identity | str:
        """Return the identity that this token proves; a sentence if the token is not valid."""
        if self.names is not None:
            shown_as = digest(shown).hex()  # no timing leak: nobody can choose the first bytes of a digest
            name = self.names.get(shown_as)
            if name is not None:
                return Identity(name, shown_as)
        if self.names is None if self.token is None else self.token.matches(shown):
            return NOBODY
        return WRONG_TOKEN if shown else NO_TOKEN


OPEN = Authentication()
"""Requires nothing."""


def read_authentication(settings: RlxServerSection, names: dict[str, str] | None = None) -> Authentication:
    """Return what the configuration requires; `names`: the known named clients. Raises ConfigurationError."""
    secret = rlx_server_token(settings)
    known = None if settings.clients_file is None else names or {}
    token = None if secret is None else Token(secret)
    return Authentication(token, rlx_server_context(settings), known, tuple(settings.origins))


class ClientEntry(Section):
    """The file's entry for one name. Without a quota, only the server's own limits apply."""

    token_file: str | None = Field(None, description="File with its token, relative to the folder of this file.")
    token_sha256: Any = Field(None, description="SHA-256 of its token in hex.")  # errors must not quote it: see below
    max_connections: int | None = Field(None, ge=1, description="Maximum simultaneous connections.")
    max_environments: int | None = Field(None, ge=1, description="Maximum environments of all its connections.")
    steps_per_second: float | None = Field(None, gt=0, description="Environment steps of all its connections.")
    bytes_per_second: float | None = Field(None, gt=0, description="Bytes that all its connections send and receive.")

    @model_validator(mode="after")
    def _one_token(self) -> ClientEntry:
        if (self.token_file is None) == (self.token_sha256 is None):
            raise ValueError("one of token-file and token-sha256 is needed; `relaax keys DIR --client NAME` makes both")
        return self


@dataclass(frozen=True, slots=True)
class ClientAccount:
    """A client: its name, the digest of its token in hex, and its quotas; None means no quota."""

    name: str
    digest: str
    max_connections: int | None = None
    max_environments: int | None = None
    steps_per_second: float | None = None
    bytes_per_second: float | None = None


class ClientAccounts:
    """The clients of a file, by name. Keeps the names in `authentication` up to date. `clock` gives seconds."""

    def __init__(
        self, file: str | None, authentication: Authentication, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`file`: None if there are no named clients. Raises ConfigurationError."""
        self._path = None if file is None else with_home(file, KEY)
        self._authentication = authentication
        self._clock = clock
        self._look_at = clock() + LOOK_SECONDS
        self._by_name: dict[str, ClientAccount] = {}
        self._files: tuple[Path, ...] = ()
        self._read_as: object = None
        self._seen_as: object = None
        self._asked = False
        if self._path is not None:
            self._read(self._path)

    def get(self, name: str) -> ClientAccount | None:
        """Return the client of that name; None if there is none, or no longer one."""
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[ClientAccount]:
        return iter(self._by_name.values())

    def read_at_once(self) -> None:
        """Make the next `look` read the file, changed or not."""
        self._asked = True

    def look(self) -> bool:
        """Read the file again if it or a token file has changed, and return whether it was; a wrong one is logged."""
        if self._path is None or (not self._asked and self._clock() < self._look_at):
            return False
        self._look_at = self._clock() + LOOK_SECONDS
        signature, before = self._signature(), self._seen_as
        self._seen_as = signature
        if not self._asked and (signature == self._read_as or signature != before):
            return False
        self._asked = False
        try:
            self._read(self._path)
        except ConfigurationError as error:
            self._read_as = signature
            _log.error("%s; keeping the previous %d clients", error, len(self._by_name))
            return False
        _log.info("%s was read again: %d clients", self._path, len(self._by_name))
        return True

    def _read(self, path: Path) -> None:
        before = _stamp(path)  # a write during the read is noticed at the next look
        found, self._files = read_clients(path, self._authentication)
        self._by_name = {client.name: client for client in found}
        assert self._authentication.names is not None
        self._authentication.names.clear()
        self._authentication.names.update((client.digest, client.name) for client in found)
        self._read_as = self._seen_as = before, *map(_stamp, self._files)

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
        raise ConfigurationError(f"{where}: names with keys and values are needed; {{}} means no clients")
    if len(data) > MAX_CLIENTS:
        raise ConfigurationError(f"{where}: {len(data)} names exceed the maximum of {MAX_CLIENTS}")
    if path.stat().st_mode & stat.S_IWOTH:
        _log.warning("%s: everybody on this machine can let clients in; chmod 600 helps", where)
    found: dict[str, ClientAccount] = {}
    files = []
    for name, entry in data.items():
        if not isinstance(name, str) or not re.fullmatch(CLIENT_NAME, name):
            raise ConfigurationError(f"{where}: {name!r} is no name of a client: use {CLIENT_NAME_RULE}")
        said = validate_section(ClientEntry, entry, f"{where}: {name}")
        if said.token_file is not None:
            files.append(path.parent / with_home(said.token_file, where))
            shown = _digest_of(files[-1], f"{where}: {name}.token_file")
        else:
            shown = str(said.token_sha256)
        if not re.fullmatch("[0-9a-fA-F]{64}", shown):  # not quoted: it may be the token itself
            raise ConfigurationError(f"{where}: {name}.token_sha256: 64 hexadecimal digits in quotes are needed")
        client = ClientAccount(name, shown.lower(), **said.model_dump(exclude={"token_file", "token_sha256"}))
        other = found.setdefault(client.digest, client)
        if other is not client:
            raise ConfigurationError(f"{where}: {name} and {other.name} have the same token: make one for each")
        if authentication.token is not None and authentication.token.hex == client.digest:
            raise ConfigurationError(f"{where}: {name} has the token of clients without a name: make one of its own")
    return list(found.values()), tuple(files)


def _digest_of(file: Path, key: str) -> str:
    secret = read_token(str(file), key, "")
    assert secret is not None
    return digest(secret).hex()
