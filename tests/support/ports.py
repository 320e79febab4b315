"""Free ports for servers that cannot report the port that they were assigned."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_PORTS = range(20_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return different ports of loopback that are free at this moment.

    They are below the range from which the system assigns ports. Otherwise another program could be assigned one of
    them before a server listens on it.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"fewer than {count} free ports in {_PORTS}")
