"""Help of commands as people expect it: `--clients N`, `--run-dir DIR` and `CONFIG`, without Python's types."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer.core
from typer.models import ArgumentInfo, OptionInfo


class PlainCommand(typer.core.TyperCommand):
    """A command whose help and usage name its arguments only, in every version of Typer."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage after the command's name: [OPTIONS], and each argument."""
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
    """Give each option and argument of a command that has no metavar one by its type and name."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    for parameter in parameters:
        if get_origin(parameter.annotation) is not Annotated:
            continue
        annotated, *notes = get_args(parameter.annotation)
        for note in notes:
            if isinstance(note, OptionInfo | ArgumentInfo) and note.metavar is None:
                note.metavar = _metavar(parameter.name, annotated, isinstance(note, ArgumentInfo))
    # Strings would be evaluated again, into options of their own.
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
