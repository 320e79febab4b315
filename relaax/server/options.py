"""Options that the commands of the servers share."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import typer

from relaax import __version__


def versions() -> str:
    """Return the versions of RELAAX, the protocol and Python, in one line."""
    from relaax.rlx import PROTOCOL_VERSION

    return f"relaax {__version__}, RLX {PROTOCOL_VERSION}, Python {platform.python_version()}"


def _print_versions(asked: bool) -> None:
    if asked:
        print(versions())
        raise typer.Exit(0)


ConfigOption = Annotated[str, typer.Option(help="The YAML file of the experiment, or the name of a bundled one.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key of the file; repeatable.")
]
PrintConfigOption = Annotated[
    bool, typer.Option("--print-config", help="Print the effective configuration, with the source of each value; end.")
]
VersionOption = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_versions, help="Print the versions of RELAAX and Python."),
]
CheckConfigOption = Annotated[
    bool, typer.Option("--check-config", help="Check the configuration and start nothing: exit code 0, or 2 and why.")
]


_HELP = {"help_option_names": ["-h", "--help"]}


class _Application(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Any:
        return super().command(name, **{"context_settings": _HELP, **more})


def command_app(**more: Any) -> typer.Typer:
    """Return an application with plain help: the framed help truncates long option names on a narrow terminal.

    `more`: arguments of `typer.Typer`.
    """
    plain = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
    return _Application(**{**plain, "context_settings": _HELP, **more})
