"""The commands that an installation puts on the path. What they need, and is not there, is named with its extra."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from relaax.extras import named

INTERRUPTED = 130


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Ctrl-C while libraries are imported ends the process at once: there is nothing yet to end in order.

    No exception: some libraries make another one of it, or swallow it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, such as behind nohup
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _asks_for_versions() -> bool:
    """Whether that was all; then it is answered, before a server's libraries are imported or missed."""
    asked = sys.argv[1:] == ["--version"]
    if asked:
        from relaax.server.options import versions

        print(versions())
    return asked


def main() -> None:
    """`relaax`."""
    with named("relaax"):
        with _importing():
            from relaax.cli.app import app

        app(prog_name="relaax")


def parameter_server() -> None:
    """`relaax-parameter-server`."""
    with named("relaax-parameter-server"):
        if _asks_for_versions():
            return
        with _importing():
            from relaax.server.parameter_server.main import main as serve

        serve()


def rlx_server() -> None:
    """`relaax-rlx-server`."""
    with named("relaax-rlx-server"):
        if _asks_for_versions():
            return
        with _importing():
            from relaax.server.rlx_server.main import main as serve

        serve()


if __name__ == "__main__":
    main()
