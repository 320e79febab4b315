"""The options that all commands share, and the format of their help: `--clients N`, `--run-dir DIR`, `CONFIG`."""

from __future__ import annotations

import enum
import inspect
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
import typer.core
from typer.models import ArgumentInfo, OptionInfo

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
    bool,
    typer.Option("--print-config", help="Print the effective configuration and the source of each value."),
]
VersionOption = Annotated[
    bool,
    typer.Option("--version", is_eager=True, callback=_print_versions, help="Print the versions of RELAAX and Python."),
]
CheckConfigOption = Annotated[
    bool,
    typer.Option("--check-config", help="Only check the configuration: exit with code 0, or 2 and the error."),
]


_HELP = {"help_option_names": ["-h", "--help"]}


class _Application(typer.Typer):
    def command(self, name: str | None = None, **more: Any) -> Any:
        register = super().command(name, **{"context_settings": _HELP, "cls": PlainCommand, **more})

        def decorate(function: Any) -> Any:
            name_values(function)
            return register(function)

        return decorate


def command_app(**more: Any) -> typer.Typer:
    """Return an application with plain help, because framed help truncates long option names on a narrow terminal.

    `more`: arguments of `typer.Typer`.
    """
    plain = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
    return _Application(**{**plain, "context_settings": _HELP, **more})


class PlainCommand(typer.core.TyperCommand):
    """A command whose help shows arguments by metavar, the same in every version of Typer."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage after the command's name: [OPTIONS] and each argument."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        shown = [_argument(param) if param.required else f"[{_argument(param)}]" for param in arguments]
        return [self.options_metavar or "", *shown]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                kind = param.param_type_name
                rows[kind].append((_argument(param) if kind == "argument" else record[0], record[1]))
        for kind, records in rows.items():
            if records:
                with formatter.section(f"{kind.capitalize()}s"):
                    formatter.write_dl(records)


def _argument(param: Any) -> str:
    return str(param.metavar) + ("..." if param.nargs == -1 else "")


def name_values(function: Callable[..., Any]) -> None:
    """Set the missing metavars of a command's options and arguments, by their types and names."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    for parameter in parameters:
        if get_origin(parameter.annotation) is not Annotated:
            continue
        annotated, *notes = get_args(parameter.annotation)
        for note in notes:
            if isinstance(note, OptionInfo | ArgumentInfo) and note.metavar is None:
                note.metavar = _metavar(parameter.name, annotated, isinstance(note, ArgumentInfo))
    # Typer would evaluate annotations that are strings again, into other option objects.
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _metavar(name: str, annotated: Any, is_argument: bool) -> str | None:
    kinds = [annotated, *get_args(annotated)]
    if any(kind is bool for kind in kinds):
        return None  # flags have no value
    if any(kind in (int, float) for kind in kinds):
        return "N"
    choices = [str(one) for kind in kinds if get_origin(kind) is Literal for one in get_args(kind)]
    choices += [
        str(one.value) for kind in kinds if isinstance(kind, type) and issubclass(kind, enum.Enum) for one in kind
    ]
    if choices:
        return f"[{'|'.join(choices)}]"
    word = name.strip("_").rpartition("_")[2].upper()
    if is_argument:
        return word
    return "FILE" if Path in kinds and word != "DIR" else word
