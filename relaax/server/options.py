"""Options that the commands of the servers share."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from relaax import __version__
from relaax.configuration import Section
from relaax.configuration.sections import Address, Addresses, S3Location


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
    return _Application(
        add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=_HELP, **more
    )


_Command = Callable[..., None]
_METAVARS = {Address: "HOST:PORT", Addresses: "HOST:PORT,..."}


def key_options(
    prefix: str, section: type[Section], *names: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these keys of a section, described as the key is.

    The command gets those that were given as `keys`, by `PREFIX.KEY`; None stands for an option that was left out.
    """

    def decorate(function: _Command) -> _Command:
        own = [one for one in inspect.signature(function, eval_str=True).parameters.values() if one.name != "keys"]
        options = [_option(name, section.model_fields[name]) for name in names]

        def command(**values: Any) -> None:
            given = {f"{prefix}.{name}": values.pop(name) for name in names}
            function(keys={key: None if value is False else value for key, value in given.items()}, **values)

        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (own[0], *options, *own[1:])]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        command.__doc__ = function.__doc__
        return command

    return decorate


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return an option for a key: a flag, or a text that is checked with the rest of the configuration."""
    flag = f"--{name.replace('_', '-')}"
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not None]
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    if bool in kinds:
        annotation: Any = Annotated[bool, typer.Option(flag, help=field.description)]
    elif S3Location in kinds:
        shown = typer.Option(flag, metavar="BUCKET KEY", help=field.description)
        annotation = Annotated[tuple[str, str] | None, shown]
    else:
        metavar = f"[{'|'.join(choices)}]" if choices else None
        for known, shown in _METAVARS.items():
            if known in kinds or get_args(known)[-1] in field.metadata:
                metavar = shown
        kind = float if float in kinds else str
        annotation = Annotated[kind | None, typer.Option(flag, metavar=metavar, help=field.description)]
    default = False if bool in kinds else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
