"""The entry points of the installed commands. A missing dependency is reported with the extra that provides it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator

from relaax.console import replace_unknown_characters
from relaax.libraries import missing_from, named

os.environ.update(missing_from(os.environ))  # before anything imports numpy

INTERRUPTED = 130


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Let Ctrl-C end the process at once during imports.

    No other process has to be shut down yet. An exception is not used, because some libraries convert or swallow it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as under nohup
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _print_requested_versions() -> bool:
    """Print the versions if `--version` is the only argument, without importing a server; return whether it is."""
    requested = sys.argv[1:] == ["--version"]
    if requested:
        from relaax.server.command.options import versions

        print(versions())
    return requested


def main() -> None:
    """Run `relaax`."""
    replace_unknown_characters()
    with named("relaax"):
        with _importing():
            from relaax.cli.app import app

        app(prog_name="relaax")


def parameter_server() -> None:
    """Run `relaax-parameter-server`."""
    _serve("relaax-parameter-server", "relaax.server.parameter_server.main")


def replay_server() -> None:
    """Run `relaax-replay-server`."""
    _serve("relaax-replay-server", "relaax.server.replay_server.main")


def rlx_server() -> None:
    """Run `relaax-rlx-server`."""
    _serve("relaax-rlx-server", "relaax.server.rlx_server.main")


def learner() -> None:
    """Run `relaax-learner`."""
    _serve("relaax-learner", "relaax.server.learner.main")


def tensorboard() -> None:
    """Run `relaax-tensorboard`."""
    _serve("relaax-tensorboard", "relaax.server.tensorboard.main")


def _serve(command: str, module: str) -> None:
    replace_unknown_characters()
    with named(command):
        if not _print_requested_versions():
            with _importing():
                serve = importlib.import_module(module).main
            serve()


if __name__ == "__main__":
    main()
