"""The command `relaax-parameter-server`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from relaax.library_variables import missing_from

# The libraries imported below read these.
os.environ.update(missing_from(os.environ))

import typer

from relaax.checkpoint import LeaseWaitInterrupted, NoneUsable, StoreError
from relaax.configuration import Configuration, ConfigurationError, overrides_of
from relaax.configuration.roles import PARAMETER_SERVER
from relaax.extras import named
from relaax.hosting.loader import Algorithm, load_algorithm
from relaax.log_lines import print_error
from relaax.output import replace_unknown_characters
from relaax.parameters.descriptors import allow_descriptors
from relaax.server.address import AddressError
from relaax.server.checkpoint_storage import location_overrides
from relaax.server.command_configuration import configured, require_private_ports, show, whole
from relaax.server.key_options import key_options
from relaax.server.logs import configure_logging
from relaax.server.native_messages import load_tensorflow_quietly
from relaax.server.options import (
    CheckConfigOption,
    ConfigOption,
    PrintConfigOption,
    SetOption,
    VersionOption,
    command_app,
)
from relaax.server.shard_option import check_position, position_keys
from relaax.server.termination import EndRequests, Reason, signal_reasons

if TYPE_CHECKING:
    from relaax.server.parameter_server.server import Server

_log = logging.getLogger(__name__)

app = command_app()


@app.command()
@key_options(
    PARAMETER_SERVER,
    "bind", "first_shard", "checkpoint_dir", "checkpoint_aws_s3", "aws_keys", "aws_endpoint", "metrics_dir",
    "metrics_aws_s3", "status_bind", "log_level", "log_format", "device", "allow_anonymous",
)  # fmt: skip
def serve(
    config: ConfigOption,
    keys: dict[str, Any],
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/K", help="Which shard of how many this is, from 0, such as 0/4; shard 0 leads."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the parameters that training starts from.")] = None,
    set_: SetOption = None,
    print_config: PrintConfigOption = False,
    check_config: CheckConfigOption = False,
    version: VersionOption = False,
) -> None:
    """Hold the parameters that workers train, and save them.

    The command line wins over environment variables (RELAAX_PARAMETER_SERVER__BIND=...), and these over the file.
    """
    try:
        given = {**keys, "algorithm.seed": seed, **position_keys(shard, "parameter-server")}
        configuration = configured(
            config, [*(set_ or []), *overrides_of(given), *location_overrides(PARAMETER_SERVER, given)]
        )
        settings = configuration.parameter_server
        check_position(settings.shard, settings.shards, PARAMETER_SERVER.section)
        if print_config or check_config:
            show(config, whole(configuration), print_config)
            raise typer.Exit(0)
        configure_logging(settings.log_level, settings.log_format)
        require_private_ports(settings)
    except (ConfigurationError, AddressError) as error:
        _give_up(error, 2)
    raise typer.Exit(_run(configuration))


def _run(configuration: Configuration) -> int:
    """Serve until the end; return the exit code."""
    allow_descriptors()
    algorithm = _load(configuration)  # may take seconds, in which a signal simply ends the process
    ends = EndRequests()
    # A second signal finds the last checkpoint being written or the process ending, and disturbs neither.
    with ends.signals(signal_reasons(), afterwards=signal.SIG_IGN), ExitStack() as closing:
        server = _assemble(configuration, algorithm, ends, closing)
        server.start()
        print(f"relaax-parameter-server listening on {server.address}", flush=True)
        if server.status_address:
            print(f"relaax-parameter-server status at http://{server.status_address}", flush=True)
        reason, safe = server.run()
    if reason is Reason.REFUSED:
        _give_up(server.refusal, 2)
    if reason is Reason.SUPERSEDED:
        return 1  # the lease has said why
    if not safe and server.kept:
        _log.error("the last checkpoint could not be written where it belongs: it waits on this machine")
        return 1
    if not safe:
        why = server.not_saved
        _log.error("the last checkpoint could not be written: %s; what was learned since the one before is lost", why)
        with contextlib.suppress(OSError):
            print(f"relaax-parameter-server last checkpoint failed: {why}", flush=True)  # for `relaax run`
        return 1
    return 130 if reason is Reason.INTERRUPTED else 0


def _load(configuration: Configuration) -> Algorithm:
    """Load the algorithm, and TensorFlow if it or the device needs it; on failure end the process with one sentence."""
    from relaax.nn.devices import NoSuchDevice, use_device, use_one_thread

    load_tensorflow_quietly()
    use_one_thread()
    try:
        use_device(configuration.parameter_server.device)
        return load_algorithm(configuration.algorithm_path, configuration.folder)
    except NoSuchDevice as error:
        _give_up(f"relaax-parameter-server.device: {error}", 2)
    except ConfigurationError as error:
        _give_up(error, 2)


def _assemble(configuration: Configuration, algorithm: Algorithm, ends: EndRequests, closing: ExitStack) -> Server:
    """Assemble the server; on failure end the process with one sentence."""
    from relaax.server.parameter_server.assembly import assemble
    from relaax.server.parameter_server.model import ModelRefused

    try:
        return assemble(configuration, algorithm, ends, closing)
    except (ConfigurationError, AddressError, ModelRefused, NoneUsable) as error:
        _give_up(error, 2)
    except StoreError as error:
        _give_up(error, 1)
    except LeaseWaitInterrupted as interruption:
        _give_up(interruption, 130 if ends.get() is Reason.INTERRUPTED else 0)


def _give_up(error: Exception | str, code: int) -> NoReturn:
    print_error("relaax-parameter-server", error)
    raise typer.Exit(code) from None


def main() -> None:
    """Run the command."""
    replace_unknown_characters()
    with named("relaax-parameter-server"):
        app(prog_name="relaax-parameter-server")


if __name__ == "__main__":
    main()
