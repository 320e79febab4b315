"""The command `relaax-parameter-server`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

# Read by the libraries below while they are imported: the processor belongs to the environments and their workers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import typer

from relaax.checkpoint import StoreError
from relaax.configuration import Configuration, ConfigurationError, overrides_of
from relaax.extras import named
from relaax.server.address import AddressError, require_loopback
from relaax.server.configured import configured, show, whole
from relaax.server.logs import configure_logging
from relaax.server.native_messages import import_tensorflow
from relaax.server.options import (
    AllowAnonymousOption,
    CheckConfigOption,
    ConfigOption,
    DeviceOption,
    LogLevelOption,
    PrintConfigOption,
    SetOption,
    command_app,
)
from relaax.server.parameter_server.reason import Ends, Reason

if TYPE_CHECKING:
    from relaax.server.parameter_server.server import Server

_log = logging.getLogger(__name__)

app = command_app()


@app.command()
def serve(
    config: ConfigOption,
    bind: Annotated[str | None, typer.Option(help="HOST:PORT for workers; port 0 picks a free one.")] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(help="Folder of the checkpoints, in place of the file's.")
    ] = None,
    metrics_dir: Annotated[str | None, typer.Option(help="Folder of the TensorBoard run.")] = None,
    log_level: LogLevelOption = None,
    seed: Annotated[int | None, typer.Option(help="Fixes the parameters that training starts from.")] = None,
    device: DeviceOption = None,
    allow_anonymous: AllowAnonymousOption = False,
    set_: SetOption = None,
    print_config: PrintConfigOption = False,
    check_config: CheckConfigOption = False,
) -> None:
    """Hold the parameters that workers train, and save them.

    The command line wins over environment variables (RELAAX_PARAMETER_SERVER__BIND=...), and these over the file.
    """
    given = {
        "parameter-server.bind": bind,
        "parameter-server.checkpoint_dir": checkpoint_dir,
        "parameter-server.metrics_dir": metrics_dir,
        "parameter-server.log_level": log_level,
        "parameter-server.device": device,
        "parameter-server.allow_anonymous": allow_anonymous or None,
        "algorithm.seed": seed,
    }
    try:
        configuration = configured(config, [*(set_ or []), *overrides_of(given)])
        if print_config or check_config:
            show(config, whole(configuration), print_config)
            raise typer.Exit(0)
        settings = configuration.parameter_server
        configure_logging(settings.log_level)
        require_loopback(settings.bind, settings.allow_anonymous)
    except (ConfigurationError, AddressError) as error:
        _give_up(error, 2)
    raise typer.Exit(_run(configuration))


def _run(configuration: Configuration) -> int:
    """Serve until the end; the exit code."""
    import_tensorflow()  # takes seconds in which a signal simply ends the process: there is nothing to save yet
    ends = Ends()
    reasons: dict[int, Reason] = {signal.SIGINT: Reason.INTERRUPTED, signal.SIGTERM: Reason.TERMINATED}
    # A second signal finds the last checkpoint being written or the process ending, and disturbs neither.
    with ends.signals(reasons, afterwards=signal.SIG_IGN):
        server = _assemble(configuration, ends)
        server.start()
        print(f"relaax-parameter-server listening on {server.address}", flush=True)
        reason, safe = server.run()
    if not safe:
        _log.error("the last checkpoint could not be written: what was learned since the one before is lost")
        return 1
    return 130 if reason is Reason.INTERRUPTED else 0


def _assemble(configuration: Configuration, ends: Ends) -> Server:
    """The server, or the end of the process with one sentence."""
    import tensorflow as tf

    from relaax.server.parameter_server.assembly import assemble
    from relaax.server.parameter_server.model import ModelRefused
    from relaax.tf.devices import NoSuchDevice, use_device

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    try:
        use_device(configuration.parameter_server.device)
    except NoSuchDevice as error:
        _give_up(f"relaax-parameter-server.device: {error}", 2)
    try:
        return assemble(configuration, ends)
    except (ConfigurationError, AddressError, ModelRefused) as error:
        _give_up(error, 2)
    except StoreError as error:
        _give_up(error, 1)


def _give_up(error: Exception | str, code: int) -> NoReturn:
    print(f"relaax-parameter-server: {error}", file=sys.stderr)
    raise typer.Exit(code) from None


def main() -> None:
    """Entry point."""
    with named("relaax-parameter-server"):
        app(prog_name="relaax-parameter-server")


if __name__ == "__main__":
    main()
