"""The command of a role, from its options to its exit code, for all servers and learners.

Each role supplies the keys that become options, and the function that runs with the checked configuration.
"""

from __future__ import annotations

import inspect
import os
import re
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args, get_origin

from relaax.libraries import missing_from, named

# The libraries imported below read these variables.
os.environ.update(missing_from(os.environ))

import typer
from pydantic.fields import FieldInfo

from relaax.configuration import ConfigurationError, overrides_of
from relaax.configuration.key_types import Address, Addresses, S3Location
from relaax.configuration.roles import Role
from relaax.console import print_error, replace_unknown_characters
from relaax.server.address import AddressError
from relaax.server.command.configuration import check_all, configured, require_private_ports, show
from relaax.server.command.hardware import restarting, use_kernels
from relaax.server.command.logs import configure_logging
from relaax.server.command.options import (
    CheckConfigOption,
    ConfigOption,
    PrintConfigOption,
    SetOption,
    VersionOption,
    command_app,
)
from relaax.server.command.termination import EndRequests, Reason, signal_reasons

_METAVARS = {Address: "HOST:PORT", Addresses: "HOST:PORT,..."}
_METAVARS_OF = {
    "aws_endpoint": "URL",
    "aws_keys": "FILE",
    "checkpoint": "LOCATION",
    "first_shard": "HOST:PORT",
    "parameter_server": "HOST:PORT,...",
    "replay_server": "HOST:PORT,...",
}
"""Metavars by the key's name, for keys whose type does not determine the metavar."""

Serve = Callable[..., int]
"""Run a process with its `Configuration` and its own options as keyword arguments; return the exit code.

It may raise CommandError, ConfigurationError and AddressError.
"""


class CommandError(Exception):
    """The command ends with a message and the exit code `code`: 1 if a retry may succeed, else 2."""

    def __init__(self, why: object, code: int) -> None:
        super().__init__(str(why))
        self.code = code


def role_app(
    role: Role,
    serve: Serve,
    *names: str,
    further: Mapping[str, Any] | None = None,
    without_config: tuple[Any, Callable[[Mapping[str, Any]], str]] | None = None,
) -> typer.Typer:
    """Return the application of a role's command, whose help begins with the docstring of `serve`.

    The options are:

    - one for each of the keys `names` of the role's section, with the key's description
    - `--shard`, if the section has shards
    - one for each key in `further`, which maps keys of other sections to the annotations of their options
    - the keyword arguments of `serve`
    - `--config` and the others that all roles have

    If --config is optional, `without_config` is its annotation and a function that returns its default, given the keys.
    """
    own = list(inspect.signature(serve, eval_str=True).parameters.values())[1:]
    keys = {name: f"{role.section}.{name}" for name in names}
    options = [_key_option(name, role.model.model_fields[name]) for name in names]
    if "shards" in role.model.model_fields:
        text = f"Index of this shard, from 0, and number of shards, such as 0/4{'; shard 0 leads' if role.led else ''}."
        options.append(_option("shard", Annotated[str | None, typer.Option(metavar="I/K", help=text)]))
    for key, annotation in (further or {}).items():
        name = key.rpartition(".")[2]
        keys[name] = key
        options.append(_option(name, annotation))

    def command(**values: Any) -> None:
        try:
            code = _run(role, serve, keys, values, without_config)
        except CommandError as end:
            print_error(str(role.command), end)
            code = end.code
        except (ConfigurationError, AddressError) as error:
            print_error(str(role.command), error)
            code = 2
        raise typer.Exit(code)

    config = (
        _option("config", without_config[0])
        if without_config
        else _option("config", ConfigOption, inspect.Signature.empty)
    )
    parameters = [
        config,
        *options,
        *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
        _option("set_", SetOption),
        _option("print_config", PrintConfigOption, False),
        _option("check_config", CheckConfigOption, False),
        _option("version", VersionOption, False),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__doc__ = serve.__doc__
    app = command_app()
    app.command()(command)
    return app


def run_app(role: Role, app: typer.Typer) -> None:
    """Run a role's command with the arguments of this process."""
    name = str(role.command)
    replace_unknown_characters()
    with named(name), restarting(name):
        app(prog_name=name)


def _run(
    role: Role,
    serve: Serve,
    keys: Mapping[str, str],
    values: dict[str, Any],
    without_config: tuple[Any, Callable[[Mapping[str, Any]], str]] | None,
) -> int:
    """Return the exit code. Raises CommandError, ConfigurationError and AddressError."""
    del values["version"]
    given = {key: None if (value := values.pop(name)) is False else value for name, key in keys.items()}
    fields = role.model.model_fields
    if "shards" in fields:
        given |= _position(values.pop("shard"), role.section)
    config = values.pop("config")
    if config is None and without_config is not None:
        config = without_config[1](given)
    overrides = [*(values.pop("set_") or []), *overrides_of(given), *_one_location(role.section, given)]
    configuration = configured(config, overrides)
    settings: Any = configuration.sections[role.section]
    if "shards" in fields:
        _check_position(settings.shard, max(settings.shards, 1), role.section)
    print_config, check_config = values.pop("print_config"), values.pop("check_config")
    if print_config or check_config:
        show(config, check_all(configuration), print_config)
        return 0
    if "log_level" in fields:
        configure_logging(settings.log_level, settings.log_format)
    if "blas_kernels" in fields:
        use_kernels(settings.blas_kernels, os.environ)
    require_private_ports(settings)
    return serve(configuration, **values)


def _option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _key_option(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return an option for a key: a flag, or a value that is checked with the rest of the configuration."""
    flag = f"--{name.replace('_', '-')}"
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind is not None]
    choices = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())
    if bool in kinds:
        return _option(name, Annotated[bool, typer.Option(flag, help=field.description)], False)
    if S3Location in kinds:
        shown = typer.Option(flag, metavar="BUCKET KEY", help=field.description)
        return _option(name, Annotated[tuple[str, str] | None, shown])
    metavar = f"[{'|'.join(choices)}]" if choices else _METAVARS_OF.get(name)
    for known, shown in _METAVARS.items():
        if known in kinds or get_args(known)[-1] in field.metadata:
            metavar = shown
    kind = float if float in kinds else str
    return _option(name, Annotated[kind | None, typer.Option(flag, metavar=metavar, help=field.description)])


def _position(shard: str | None, section: str) -> dict[str, int]:
    """Return the keys of a section for `--shard I/K`. Raises ConfigurationError."""
    if shard is None:
        return {}
    found = re.fullmatch(r"(\d{1,9})/([1-9]\d{0,8})", shard)
    if found is None:
        raise ConfigurationError(f"--shard: {shard!r} is not I/K, such as 0/4 for the first of four shards")
    return {f"{section}.shard": int(found[1]), f"{section}.shards": int(found[2])}


def _check_position(shard: int, shards: int, section: str) -> None:
    if shard >= shards:
        raise ConfigurationError(
            f"{section}.shard: must be from 0 to {shards - 1} (there are {shards} shards), not {shard}"
        )


def _one_location(section: str, given: Mapping[str, Any]) -> list[str]:
    """Return an override that removes the other kind of checkpoint location if the command line gives one kind.

    Raises ConfigurationError if it gives both kinds.
    """
    locations = [key for key in (f"{section}.checkpoint_dir", f"{section}.checkpoint_aws_s3") if key in given]
    absent = [key for key in locations if given[key] is None]
    if locations and not absent:
        raise ConfigurationError("--checkpoint-dir and --checkpoint-aws-s3 exclude each other: give one of them")
    return [f"{absent[0]}=null"] if len(absent) == 1 else []


def announce(role: Role, listening: str | None = None, status: str | None = None) -> None:
    """Print the addresses of a process that is ready. Supervisors parse these lines."""
    if listening:
        print(f"{role.command} listening on {listening}", flush=True)
    if status:
        print(f"{role.command} status at http://{status}", flush=True)


class ServerBase(Protocol):
    """A server that keeps checkpoints."""

    address: str

    @property
    def status_address(self) -> str | None:
        """HOST:PORT of /healthz and /metrics; None without a status port."""

    def start(self) -> None:
        """Start to serve requests."""

    def run(self) -> tuple[Reason, bool]:
        """Serve until there is a reason to end. Return it, and whether the last checkpoint is safe."""


_Server = TypeVar("_Server", bound=ServerBase)


def run_server(role: Role, assemble: Callable[[EndRequests, ExitStack], _Server]) -> tuple[_Server, Reason, bool]:
    """Run a server that keeps checkpoints. Return it, the reason of its end, and whether the last checkpoint is safe.

    `assemble` returns the server, bound and restored. Errors of the checkpoint store become CommandError; other errors
    of `assemble` are raised unchanged.
    """
    from relaax.checkpoint import LeaseWaitInterrupted, NoUsableCheckpoint, StoreError
    from relaax.transport.process_resources import allow_descriptors

    allow_descriptors()
    # A second signal is ignored: it must not interrupt the last checkpoint.
    with (
        closing(EndRequests()) as ends,
        ends.signals(signal_reasons(), afterwards=signal.SIG_IGN),
        ExitStack() as ended,
    ):
        try:
            server = assemble(ends, ended)
        except NoUsableCheckpoint as error:
            raise CommandError(error, 2) from None
        except StoreError as error:
            raise CommandError(error, 1) from None
        except LeaseWaitInterrupted as interruption:
            raise CommandError(interruption, exit_code(ends.get())) from None
        server.start()
        announce(role, server.address, server.status_address)
        reason, safe = server.run()
    return server, reason, safe


def exit_code(reason: Reason | None) -> int:
    """Return the exit code of a process that ended for this reason without an error."""
    return 130 if reason is Reason.INTERRUPTED else 0
