"""The commands that an installation puts on the path. What they need, and is not there, is named with its extra."""

from __future__ import annotations

from relaax.extras import named


def main() -> None:
    """`relaax`."""
    with named("relaax"):
        from relaax.cli.app import app

        app(prog_name="relaax")


def parameter_server() -> None:
    """`relaax-parameter-server`."""
    with named("relaax-parameter-server"):
        from relaax.server.parameter_server.main import main as serve

        serve()


def rlx_server() -> None:
    """`relaax-rlx-server`."""
    with named("relaax-rlx-server"):
        from relaax.server.rlx_server.main import main as serve

        serve()


if __name__ == "__main__":
    main()
