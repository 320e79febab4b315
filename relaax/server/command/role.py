"""The command of a role: what all servers and learners do from their options to their exit code.

A role gives what differs: the keys that are options, and what runs once the configuration is checked.
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

# The libraries imported below read these.
os.environ.update(missing_from(os.environ))

import typer
from pydantic.fields import FieldInfo

from relaax.configuration import ConfigurationError, overrides_of
from relaax.configuration.key_types import Address, Addresses, S3Location
from relaax.configuration.roles import Role
from relaax.console import print_error, replace_unknown_characters
from relaax.server.address import AddressError
from relaax.server.command.configuration import configured, require_private_ports, show, whole
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
"""By the key's name, for keys whose type does not determine it."""

Serve = Callable[..., int]
"""Runs a process with its `Configuration`, and options of its own by name; returns the exit code.

It may raise GivenUp, ConfigurationError and AddressError.
"""


class GivenUp(Exception):
    """The command ends with one sentence and `code`: 1 if another try may help, else 2."""

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

    It has an option for each of the keys `names` of the role's section, described as the key is, `--shard` if the
    section has shards, an option for each key of another section (`further`: its annotation), and those of `serve`.
    `without_config`: the option --config, if it may be left out, and what returns its value then, given the keys.
    """
    own = list(inspect.signature(serve, eval_str=True).parameters.values())[1:]
    keys = {name: f"{role.section}.{name}" for name in names}
    options = [_key_option(name, role.model.model_fields[name]) for name in names]
    if "shards" in role.model.model_fields:
        text = f"Which shard of how many this is, from 0, such as 0/4{'; shard 0 leads' if role.led else ''}."
        options.append(_option("shard", Annotated[str | None, typer.Option(metavar="I/K", help=text)]))
    for key, annotation in (further or {}).items():
        name = key.rpartition(".")[2]
        keys[name] = key
        options.append(_option(name, annotation))

    def command(**values: Any) -> None:
        try:
            code = _run(role, serve, keys, values, without_config)
        except GivenUp as end:
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
    """Return the exit code. Raises GivenUp, ConfigurationError and AddressError."""
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
        show(config, whole(configuration), print_config)
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
    """Return an option for a key: a flag, or a text that is checked with the rest of the configuration."""
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
            f"{section}.shard: is {shard}, and of {shards} the last one is {shards - 1}; they are counted from 0"
        )


def _one_location(section: str, given: Mapping[str, Any]) -> list[str]:
    """Override the file's location of checkpoints, of either kind, if the command line gives one.

    Raises ConfigurationError if it gives both.
    """
    locations = [key for key in (f"{section}.checkpoint_dir", f"{section}.checkpoint_aws_s3") if key in given]
    absent = [key for key in locations if given[key] is None]
    if locations and not absent:
        raise ConfigurationError("--checkpoint-dir or --checkpoint-aws-s3: checkpoints are kept in one place")
    return [f"{absent[0]}=null"] if len(absent) == 1 else []


def announce(role: Role, listening: str | None = None, status: str | None = None) -> None:
    """Print the addresses of a process that is ready, as those that started it expect."""
    if listening:
        print(f"{role.command} listening on {listening}", flush=True)
    if status:
        print(f"{role.command} status at http://{status}", flush=True)


class ServerBase(Protocol):
    """A server that keeps checkpoints."""

    address: str

    @property
    def status_address(self) -> str | None:
        """HOST:PORT of /healthz and /metrics, if they are served."""

    def start(self) -> None:
        """Start to answer."""

    def run(self) -> tuple[Reason, bool]:
        """Serve until the end. Return the reason, and whether the last checkpoint is safe."""


_Server = TypeVar("_Server", bound=ServerBase)


def run_server(role: Role, assemble: Callable[[EndRequests, ExitStack], _Server]) -> tuple[_Server, Reason, bool]:
    """Run a server that keeps checkpoints until the end. Return it, the reason, and whether the last one is safe.

    `assemble` returns the server, bound and restored. Raises what it raises, and GivenUp for what a store raises.
    """
    from relaax.checkpoint import LeaseWaitInterrupted, NoUsableCheckpoint, StoreError
    from relaax.transport.process_resources import allow_descriptors

    allow_descriptors()
    # A second signal finds the last checkpoint being written or the process ending, and disturbs neither.
    with (
        closing(EndRequests()) as ends,
        ends.signals(signal_reasons(), afterwards=signal.SIG_IGN),
        ExitStack() as ended,
    ):
        try:
            server = assemble(ends, ended)
        except NoUsableCheckpoint as error:
            raise GivenUp(error, 2) from None
        except StoreError as error:
            raise GivenUp(error, 1) from None
        except LeaseWaitInterrupted as interruption:
            raise GivenUp(interruption, exit_code(ends.get())) from None
        server.start()
        announce(role, server.address, server.status_address)
        reason, safe = server.run()
    return server, reason, safe


def exit_code(reason: Reason | None) -> int:
    """Return the exit code of a process that ended for this reason and in order."""
    return 130 if reason is Reason.INTERRUPTED else 0
