"""The command `relaax` and its subcommands."""

from __future__ import annotations

import sys

MISSING = {
    "typer": "server",
    "rich": "server",
    "pydantic": "server",
    "yaml": "server",
    "grpc": "server",
    "tensorflow": "server",
    "psutil": "server",
}


def main() -> None:
    """Entry point."""
    try:
        from relaax.cli.app import app
    except ModuleNotFoundError as error:
        extra = MISSING.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"relaax: {error.name} is not installed; pip install 'relaax[{extra}]'", file=sys.stderr)
        sys.exit(2)
    app(prog_name="relaax")


if __name__ == "__main__":
    main()
