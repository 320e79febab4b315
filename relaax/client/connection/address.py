"""Addresses of RLX servers, and the words that may replace one."""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path
from typing import NamedTuple

from relaax.client.connection.failure import ConnectionInterrupted
from relaax.files import read_bounded_text
from relaax.rlx import ErrorCode

RANDOM = "random"
"""Instead of HOST:PORT: no server, random actions."""
CHECK = "check"
"""Instead of HOST:PORT: no server. Episodes are played at random, and faults of the environments are reported."""

PROBE = "probe"
"""Instead of HOST:PORT: no server. One step is taken and the spaces printed, as `relaax run` does before it starts."""

LOCAL = "local"
"""Instead of HOST:PORT: no server. The agent is in this process, put there by `relaax eval`."""

SERVERLESS = (CHECK, LOCAL, PROBE, RANDOM)


PORT = 7001
"""Where an RLX server listens unless it is told otherwise."""

DISPLAY = "display"
"""Instead of a number of environments: one, on a screen."""


class Endpoint(NamedTuple):
    """Where an RLX server is. `path`: of the WebSocket's address; None over TCP. `tls`: the address asks for TLS."""

    host: str
    port: int
    path: str | None = None
    tls: bool = False


_DEFAULT_PORTS = {"ws": 80, "wss": 443}


def parse_endpoint(address: str) -> Endpoint:
    """Return what `HOST[:PORT]`, `ws://HOST[:PORT][/PATH]` or `wss://...` names.

    Raises ValueError with a sentence that names the address and the way out.
    """
    scheme, colon, rest = address.partition("://")
    if not colon or scheme not in _DEFAULT_PORTS:
        return Endpoint(*parse_address(address))
    name, slash, path = rest.partition("/")
    if (odd := next((character for character in name if character in "?#"), None)) is not None:
        raise ValueError(f"address {address!r}: write a / before the {odd!r}, behind the host")
    odd = next((character for character in path if not "!" <= character <= "~" or character == "#"), None)
    if odd is not None:
        raise ValueError(f"address {address!r}: a path has no {odd!r}; write it as %{ord(odd):02X} if it is needed")
    try:
        return Endpoint(*parse_address(name, _DEFAULT_PORTS[scheme]), slash + path or "/", scheme == "wss")
    except ValueError as error:
        why = str(error).partition(f"address {name!r}")[2].lstrip(": ")
        raise ValueError(f"address {address!r}: its host {name!r} {why}") from None


def parse_address(address: str, default: int = PORT) -> tuple[str, int]:
    """Return host and port of `HOST[:PORT]`; an IPv6 host stands in brackets. `default`: the port if none is named.

    Raises ValueError with a sentence that names the address and the way out.
    """
    odd = next((character for character in address if character.isspace() or character in "/@,"), None)
    if odd is not None:  # a URL, a list, two words
        raise ValueError(f"address {address!r} has a {odd!r} in it: write HOST or HOST:PORT, such as 127.0.0.1:7001")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(default)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {address!r}: write an IPv6 host in brackets, such as [::1]:7001")
    if not host:
        raise ValueError(f"address {address!r} names no host: write HOST or HOST:PORT, such as 127.0.0.1:7001")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"address {address!r}: the port is a number from 1 to 65535, not {port!r}")
    return host, int(port)


FILE = "@"
"""Begins the name of a file with an address on each line, instead of an address."""


class Places:
    """The RLX servers that a session may connect to, and which of them is next.

    `text`: `HOST[:PORT]` or `ws://HOST[:PORT][/PATH]`, several of them with commas between, or `@FILE`, which is read
    anew for each attempt: servers come and go, and whoever places them keeps it. Each session has an order of its own,
    which stays where servers are added or removed, so that many sessions share the servers among them (rendezvous
    hashing, Thaler and Ravishankar 1998). `tls`: nothing is sent but over TLS, so an address may not say `ws://`.
    Raises ValueError with a sentence that names the address and the way out.
    """

    def __init__(self, text: str, tls: bool = False) -> None:
        if not isinstance(text, str):
            raise ValueError(f"address is {text!r}: write HOST:PORT, such as '127.0.0.1:7001'")
        if text in SERVERLESS:
            raise ValueError(
                f"address {text!r} is for relaax.client.run and the programs of `relaax new environment`, which play "
                f"without a server; Client and VectorClient need HOST:PORT, such as '{text}:{PORT}' for such a host"
            )
        self._tls = tls
        self._key = secrets.token_bytes(8)
        self._file = Path(text.removeprefix(FILE)) if text.startswith(FILE) else None
        self._fixed: list[str] = [] if self._file else [part.strip() for part in text.split(",")]
        fixed = [self._endpoint(address) for address in self._fixed]
        self.over_websocket = any(endpoint.path is not None for endpoint in fixed)
        """Whether that is known of one of them: not of those in a file."""
        if self._file is not None and not self._file.name:
            raise ValueError(f"address {text!r} names no file: write @FILE, which has HOST:PORT on each line")
        self._connected = self._stays = False
        self._refused: set[str] = set()
        self.here = text
        """The address that was tried last; before that, the text."""

    def choose(self) -> Endpoint:
        """Return where the next attempt goes. Raises ConnectionInterrupted if there is none now."""
        listed = self._listed()
        if all(address in self._refused for address in listed):
            self._refused.clear()
        stays, self._stays = self._stays, False
        if not stays or self.here not in listed:
            left = [address for address in listed if address not in self._refused]
            self.here = max(left, key=lambda address: zlib.crc32(self._key + address.encode()))
        return self._endpoint(self.here)

    def connected(self) -> None:
        """Note that the server of the last attempt has let the session in."""
        self._connected = True
        self._refused.clear()

    def lost(self, code: ErrorCode | None) -> bool:
        """Note that the connection has ended, or that there is none. Return whether another server is to be tried now.

        One that was lost is tried again first: it may be back in a moment, and knows the session.
        """
        connected, self._connected = self._connected, False
        self._stays = connected and code is not ErrorCode.REBALANCING
        if self._stays:
            return False
        self._refused.add(self.here)
        try:
            return any(address not in self._refused for address in self._listed())
        except ConnectionInterrupted:
            return False

    def _endpoint(self, address: str) -> Endpoint:
        endpoint = parse_endpoint(address)
        if self._tls and endpoint.path is not None and not endpoint.tls:
            raise ValueError(f"address {address!r} is without TLS, and TLS is asked for: write wss:// instead of ws://")
        return endpoint

    def _listed(self) -> list[str]:
        """Return the addresses of now. Raises ConnectionInterrupted."""
        if self._file is None:
            return self._fixed
        try:
            lines = read_bounded_text(self._file).split()
        except OSError as error:
            raise ConnectionInterrupted(f"{self._file} cannot be read: {error.strerror}") from None
        except ValueError:
            raise ConnectionInterrupted(f"{self._file} is no text") from None
        if not lines:
            raise ConnectionInterrupted(f"{self._file} names no server")
        for line in lines:
            try:
                self._endpoint(line)
            except ValueError as error:
                raise ConnectionInterrupted(f"{self._file}: {error}") from None
        return lines
