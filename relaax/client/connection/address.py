"""Addresses of RLX servers, the words that may replace an address, and the choice among several servers."""

from __future__ import annotations

import secrets
import zlib
from pathlib import Path
from typing import NamedTuple

from relaax.client.connection.failure import ConnectionInterrupted
from relaax.files import read_bounded_text
from relaax.rlx import ErrorCode

# These words replace HOST:PORT. No server is used:
RANDOM = "random"  # random actions
CHECK = "check"  # plays episodes at random, and reports faults of the environments
PROBE = "probe"  # takes one step and prints the spaces, as `relaax run` does before it starts
LOCAL = "local"  # the agent is in this process; `relaax eval` provides it
SERVERLESS = (CHECK, LOCAL, PROBE, RANDOM)

PORT = 7001
"""The default port of RLX servers."""

DISPLAY = "display"
"""This word replaces the number of environments: one environment, shown on a screen."""


class Endpoint(NamedTuple):
    """An address of an RLX server. `path`: path of the WebSocket; None for TCP. `tls`: whether it requires TLS."""

    host: str
    port: int
    path: str | None = None
    tls: bool = False


_DEFAULT_PORTS = {"ws": 80, "wss": 443}


def parse_endpoint(address: str) -> Endpoint:
    """Return the endpoint of `HOST[:PORT]`, `ws://HOST[:PORT][/PATH]` or `wss://...`.

    Raises ValueError, which names the address and a valid form.
    """
    scheme, colon, rest = address.partition("://")
    if not colon or scheme not in _DEFAULT_PORTS:
        return Endpoint(*parse_address(address))
    name, slash, path = rest.partition("/")
    if odd := next((character for character in name if character in "?#"), ""):
        raise ValueError(f"address {address!r}: write a / between the host and {odd!r}")
    if odd := next((character for character in path if not "!" <= character <= "~" or character == "#"), ""):
        raise ValueError(f"address {address!r}: a path must not contain {odd!r}; encode it as %{ord(odd):02X}")
    try:
        return Endpoint(*parse_address(name, _DEFAULT_PORTS[scheme]), slash + path or "/", scheme == "wss")
    except ValueError as error:
        why = str(error).partition(f"address {name!r}")[2].lstrip(": ")
        raise ValueError(f"address {address!r}: its host {name!r} {why}") from None


def parse_address(address: str, default: int = PORT) -> tuple[str, int]:
    """Return host and port of `HOST[:PORT]`; an IPv6 host must be in brackets. `default`: the default port.

    Raises ValueError, which names the address and a valid form.
    """
    if odd := next((character for character in address if character.isspace() or character in "/@,"), ""):
        raise ValueError(f"address {address!r} contains {odd!r}: use only HOST or HOST:PORT, such as 127.0.0.1:7001")
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(default)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"address {address!r}: write an IPv6 host in brackets, such as [::1]:7001")
    if not host:
        raise ValueError(f"address {address!r} has no host: write HOST or HOST:PORT, such as 127.0.0.1:7001")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"address {address!r}: the port must be a number from 1 to 65535, not {port!r}")
    return host, int(port)


FILE = "@"
"""Prefix of the name of a file that has an address on each line."""


class ServerList:
    """The RLX servers that a session may connect to, and the choice of the next one.

    `text`: `HOST[:PORT]` or `ws://HOST[:PORT][/PATH]`, several of these separated by commas, or `@FILE`. The file is
    read before each attempt, because servers may be added or removed. `tls`: whether TLS is required; then an address
    must not begin with `ws://`.
    Each session has its own random order of servers, so that sessions are distributed over the servers. If servers are
    added or removed, the order of the others stays the same (rendezvous hashing, Thaler and Ravishankar 1998).
    Raises ValueError, which names the address and a valid form.
    """

    def __init__(self, text: str, tls: bool = False) -> None:
        if not isinstance(text, str):
            raise ValueError(f"address is {text!r}: write HOST:PORT, such as '127.0.0.1:7001'")
        if text in SERVERLESS:
            raise ValueError(
                f"address {text!r} is only for relaax.client.run and the programs of `relaax new environment`, which "
                "then use no server; Client and VectorClient need HOST:PORT, such as "
                f"'{text}:{PORT}' for a host of this name"
            )
        self._tls = tls
        self._key = secrets.token_bytes(8)
        self._file = Path(text.removeprefix(FILE)) if text.startswith(FILE) else None
        self._fixed: list[str] = [] if self._file else [part.strip() for part in text.split(",")]
        fixed = [self._endpoint(address) for address in self._fixed]
        self.over_websocket = any(endpoint.path is not None for endpoint in fixed)
        """Whether a given address uses WebSocket; addresses in a file do not count."""
        if self._file is not None and not self._file.name:
            raise ValueError(f"address {text!r} has no file name: write @FILE, a file with HOST:PORT on each line")
        self._connected = self._retry_same = False
        self._refused: set[str] = set()
        self.current = text
        """The address of the last attempt; `text` before the first."""

    def choose(self) -> Endpoint:
        """Return the endpoint of the next attempt. Raises ConnectionInterrupted if the file has none."""
        addresses = self._addresses()
        if all(address in self._refused for address in addresses):
            self._refused.clear()
        retry_same, self._retry_same = self._retry_same, False
        if not retry_same or self.current not in addresses:
            left = [address for address in addresses if address not in self._refused]
            self.current = max(left, key=lambda address: zlib.crc32(self._key + address.encode()))
        return self._endpoint(self.current)

    def record_connected(self) -> None:
        """Record that the server of the last attempt has admitted the session."""
        self._connected = True
        self._refused.clear()

    def record_loss(self, code: ErrorCode | None) -> bool:
        """Record that the connection was lost or refused. Return whether to try another server immediately.

        After a lost connection the same server is tried first, because it may soon be available again, unless `code` is
        REBALANCING.
        """
        connected, self._connected = self._connected, False
        self._retry_same = connected and code is not ErrorCode.REBALANCING
        if self._retry_same:
            return False
        self._refused.add(self.current)
        try:
            return any(address not in self._refused for address in self._addresses())
        except ConnectionInterrupted:
            return False

    def _endpoint(self, address: str) -> Endpoint:
        endpoint = parse_endpoint(address)
        if self._tls and endpoint.path is not None and not endpoint.tls:
            raise ValueError(
                f"address {address!r} does not use TLS, but TLS is required: write wss:// instead of ws://"
            )
        return endpoint

    def _addresses(self) -> list[str]:
        """Return the current addresses. Raises ConnectionInterrupted."""
        if self._file is None:
            return self._fixed
        try:
            lines = read_bounded_text(self._file).split()
        except OSError as error:
            raise ConnectionInterrupted(f"cannot read the server list {self._file}: {error.strerror}") from None
        except ValueError:
            raise ConnectionInterrupted(f"the server list {self._file} is not a text file") from None
        if not lines:
            raise ConnectionInterrupted(f"the server list {self._file} has no addresses")
        for line in lines:
            try:
                self._endpoint(line)
            except ValueError as error:
                raise ConnectionInterrupted(f"{self._file}: {error}") from None
        return lines
