"""What the commands of the servers have in common."""

from __future__ import annotations

from typing import Annotated, Any

import typer

ConfigOption = Annotated[str, typer.Option(help="The YAML file of the experiment, or the name of a bundled one.")]
LogLevelOption = Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")]
LogFormatOption = Annotated[str | None, typer.Option(help="text for people, json for machines: one object each line.")]
StatusBindOption = Annotated[
    str | None, typer.Option(help="HOST:PORT for /healthz and /metrics (Prometheus); none without it.")
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu, gpu (the first one) or gpu:I.")]
AllowAnonymousOption = Annotated[bool, typer.Option("--allow-anonymous", help="Serve other machines without a token.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a key of the file; repeatable.")
]
PrintConfigOption = Annotated[
    bool, typer.Option("--print-config", help="Print the effective configuration, and where each value is from; end.")
]
CheckConfigOption = Annotated[
    bool, typer.Option("--check-config", help="Check the configuration and start nothing: exit code 0, or 2 and why.")
]


_HELP = {"help_option_names": ["-h", "--help"]}


class _Application(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Any:
        return super().command(name, **{"context_settings": _HELP, **more})


def command_app(**more: Any) -> typer.Typer:
    """An application with plain help: the framed one cuts long option names short on a narrow terminal.

    `more`: of what `typer.Typer` takes.
    """
    return _Application(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=_HELP, **more
    )
