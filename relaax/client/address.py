"""Addresses of RLX servers, and the words that may replace one."""

from __future__ import annotations

from typing import NamedTuple

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
