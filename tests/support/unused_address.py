"""An address without a server."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def unused_address() -> Iterator[str]:
    """Reserve HOST:PORT for the block, without listening on it. An unreserved port could be taken by another test."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"
