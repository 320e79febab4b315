"""An address where nobody is."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def unused_address() -> Iterator[str]:
    """HOST:PORT at which nobody listens within: it is held, as one that was given back may be another test's by now."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"
