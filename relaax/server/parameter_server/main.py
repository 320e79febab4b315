"""The command `relaax-parameter-server`."""

from __future__ import annotations

import contextlib
import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from relaax.configuration import Configuration, ConfigurationError
from relaax.configuration.roles import PARAMETER_SERVER
from relaax.server.command.role import CommandError, exit_code, role_app, run_app, run_server
from relaax.server.command.termination import EndRequests, Reason

if TYPE_CHECKING:
    from relaax.hosting.loader import Algorithm
    from relaax.server.parameter_server.command.server import Server

_log = logging.getLogger(__name__)


def serve(configuration: Configuration) -> int:
    """Hold the parameters that workers train, and save them.

    The command line overrides environment variables (RELAAX_PARAMETER_SERVER__BIND=...), and these override the file.
    """
    from relaax.server.tracker.launch import check_tracker

    check_tracker(configuration.parameter_server)
    algorithm = _load(configuration)  # takes seconds, during which a signal ends the process at once
    server, reason, safe = run_server(
        PARAMETER_SERVER, lambda ends, closing: _assemble(configuration, algorithm, ends, closing)
    )
    if reason is Reason.REFUSED:
        raise CommandError(server.refusal, 2)
    if reason is Reason.SUPERSEDED:
        return 1  # the lease has logged the reason
    if safe:
        return exit_code(reason)
    if server.kept:
        _log.error("the last checkpoint could not be written to its location: this machine keeps it for the next start")
        return 1
    why = server.save_error
    _log.error("the last checkpoint could not be written: %s; updates since the previous checkpoint are lost", why)
    with contextlib.suppress(OSError):
        print(f"relaax-parameter-server last checkpoint failed: {why}", flush=True)  # for `relaax run`
    return 1


def _load(configuration: Configuration) -> Algorithm:
    """Load the algorithm, and TensorFlow if it or the device needs it."""
    from relaax.hosting.loader import load_algorithm
    from relaax.nn.devices import NoSuchDevice, use_device, use_one_thread

    use_one_thread()
    try:
        use_device(configuration.parameter_server.device)
        return load_algorithm(configuration.algorithm_path, configuration.folder)
    except NoSuchDevice as error:
        raise ConfigurationError(f"relaax-parameter-server.device: {error}") from None


def _assemble(configuration: Configuration, algorithm: Algorithm, ends: EndRequests, closing: ExitStack) -> Server:
    from relaax.server.parameter_server.command.assembly import assemble
    from relaax.server.parameter_server.shard.model import ModelRefused

    try:
        return assemble(configuration, algorithm, ends, closing)
    except ModelRefused as error:
        raise CommandError(error, 2) from None


app = role_app(
    PARAMETER_SERVER, serve,
    "bind", "first_shard", "checkpoint_dir", "checkpoint_aws_s3", "aws_keys", "aws_endpoint", "metrics_dir",
    "metrics_aws_s3", "status_bind", "log_level", "log_format", "device", "allow_anonymous",
    further={
        "algorithm.seed": Annotated[int | None, typer.Option(help="Seed of the initial parameters.")]
    },
)  # fmt: skip


def main() -> None:
    """Run the command."""
    run_app(PARAMETER_SERVER, app)


if __name__ == "__main__":
    main()
