"""Options of the servers' commands, derived from keys of their sections.

Apart from `relaax.server.options`, which every command imports: sections take their time to import.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from relaax.configuration.key_types import Address, Addresses, S3Location
from relaax.configuration.roles import Role

_Command = Callable[..., None]
_METAVARS = {Address: "HOST:PORT", Addresses: "HOST:PORT,..."}
_METAVARS_OF = {
    "aws_endpoint": "URL",
    "aws_keys": "FILE",
    "checkpoint": "LOCATION",
    "first_shard": "HOST:PORT",
    "parameter_server": "HOST:PORT,...",
    "replay_server": "HOST:PORT,...",
}
"""By the key's name, for keys whose type does not determine it."""


def key_options(role: Role, *names: str) -> Callable[[_Command], _Command]:
    """Give a command an option for each of these keys of its role's section, described as the key is.

    The command gets those that were given as `keys`, by `SECTION.KEY`; None stands for an option that was left out.
    """

    def decorate(function: _Command) -> _Command:
        own = [one for one in inspect.signature(function, eval_str=True).parameters.values() if one.name != "keys"]
        options = [_option(name, role.model.model_fields[name]) for name in names]

        def command(**values: Any) -> None:
            given = {f"{role.section}.{name}": values.pop(name) for name in names}
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
        metavar = f"[{'|'.join(choices)}]" if choices else _METAVARS_OF.get(name)
        for known, shown in _METAVARS.items():
            if known in kinds or get_args(known)[-1] in field.metadata:
                metavar = shown
        kind = float if float in kinds else str
        annotation = Annotated[kind | None, typer.Option(flag, metavar=metavar, help=field.description)]
    default = False if bool in kinds else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
