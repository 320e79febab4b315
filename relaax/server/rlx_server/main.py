"""The command `relaax-rlx-server`."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Annotated, Any

from relaax.library_variables import missing_from

# The libraries imported below read these.
os.environ.update(missing_from(os.environ))

import typer

from relaax.configuration import Configuration, ConfigurationError, overrides_of
from relaax.configuration.roles import RLX_SERVER
from relaax.extras import named
from relaax.log_lines import print_error
from relaax.output import replace_unknown_characters
from relaax.server.address import AddressError, listen, name_of
from relaax.server.blas import restarting, use_kernels
from relaax.server.command_configuration import configured, require_private_ports, show, whole
from relaax.server.devices import device_error
from relaax.server.key_options import key_options
from relaax.server.logs import configure_logging
from relaax.server.options import (
    CheckConfigOption,
    PrintConfigOption,
    SetOption,
    VersionOption,
    command_app,
)
from relaax.server.rlx_server.clients.accounts import ClientAccounts
from relaax.server.rlx_server.clients.authentication import Authentication, read_authentication
from relaax.server.rlx_server.clients.claims import Claims
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.listening.admission import FORKED, SPAWNED, Admission
from relaax.server.rlx_server.listening.interfaces import Spawner
from relaax.server.rlx_server.listening.listener import Listener
from relaax.server.rlx_server.listening.status import StatusLine
from relaax.server.rlx_server.temporary_folders import WorkerFolders, remove_leftovers
from relaax.server.rlx_server.workers.device_probe import device_refusal
from relaax.server.rlx_server.workers.planning import plan_workers
from relaax.server.rlx_server.workers.spawner import ForkSpawner, UnsafeFork
from relaax.server.rlx_server.workers.spawning import SpawnSpawner

_log = logging.getLogger("relaax.server.rlx_server")

app = command_app()


@app.command()
@key_options(
    RLX_SERVER,
    "bind", "parameter_server", "replay_server", "bridge", "wire_precision", "status_bind", "log_level", "log_format",
    "timeout", "device", "exploit", "checkpoint", "aws_keys", "aws_endpoint", "allow_anonymous",
)  # fmt: skip
def serve(
    keys: dict[str, Any],
    config: Annotated[
        str | None,
        typer.Option(
            help="The YAML file of the experiment, or the name of a bundled one; not needed if --checkpoint is a run "
            "directory, which has it."
        ),
    ] = None,
    set_: SetOption = None,
    print_config: PrintConfigOption = False,
    check_config: CheckConfigOption = False,
    version: VersionOption = False,
) -> None:
    """Accept environments over RLX and run one worker agent for each connection.

    The command line overrides environment variables (RELAAX_RLX_SERVER__BIND=...), which override the file.
    """
    try:
        config = config or _configuration_beside(keys[f"{RLX_SERVER.section}.checkpoint"])
        configuration = configured(config, [*(set_ or []), *overrides_of(keys)])
        if print_config or check_config:
            show(config, whole(configuration), print_config)
            raise typer.Exit(0)
        settings = configuration.rlx_server
        configure_logging(settings.log_level, settings.log_format)
        use_kernels(settings.blas_kernels, os.environ)
        require_private_ports(settings)
        remove_leftovers()
        folders = WorkerFolders()
        authentication = read_authentication(settings)
        clients = ClientAccounts(settings.clients_file, authentication)
        claims = Claims(clients, settings.max_environments, settings.max_environments_per_address, settings.max_workers)
        spawner = _spawner(configuration, folders, claims.meters, authentication)
        sock = listen(settings.bind)
        status_sock = listen(settings.status_bind) if settings.status_bind else None
    except (ConfigurationError, AddressError, UnsafeFork) as error:
        print_error("relaax-rlx-server", error)
        raise typer.Exit(2) from None
    print(f"relaax-rlx-server listening on {name_of(sock)}", flush=True)
    status = None
    if status_sock is not None:
        status = StatusLine(status_sock, settings.log_level, settings.log_format)
        print(f"relaax-rlx-server status at http://{name_of(status_sock)}", flush=True)
    spawns = settings.worker_start == "spawn"
    listener = Listener(
        sock,
        spawner,
        Admission(settings.max_workers, settings.memory_reserve, SPAWNED if spawns else FORKED),
        folders,
        claims,
        handshake_timeout=settings.handshake_timeout,
        max_handshakes=settings.max_handshakes,
        status=status,
        authentication=authentication,
        max_failed_handshakes=settings.max_failed_handshakes,
        drain=settings.drain,
    )
    if settings.clients_file is not None:
        signal.signal(signal.SIGHUP, lambda *_: clients.read_at_once())
    try:
        ended_by = listener.run()
    except UnsafeFork as error:
        print_error("relaax-rlx-server", error)
        raise typer.Exit(1) from None
    _log.info("ended %s", f"by {signal.Signals(ended_by).name}" if ended_by else "with the training")
    raise typer.Exit(130 if ended_by == signal.SIGINT else 0)


def _configuration_beside(checkpoint: str | None) -> str:
    """Return the configuration of the run directory that --checkpoint names. Raises ConfigurationError."""
    file = Path(checkpoint or "") / "configuration.yaml"
    if checkpoint is None or not file.is_file():
        raise ConfigurationError(
            "--config is missing: the YAML file of the experiment, or the name of a bundled one. Only --checkpoint "
            "with a run directory, which has one, does without"
        )
    return str(file)


def _spawner(
    configuration: Configuration, folders: WorkerFolders, meters: Meters, authentication: Authentication
) -> Spawner:
    """Return the spawner that `worker_start` selects. Raises ConfigurationError and UnsafeFork."""
    settings, section = configuration.rlx_server, configuration.algorithm
    path, folder = configuration.algorithm_path, configuration.folder
    if settings.worker_start == "spawn":
        return SpawnSpawner(settings, section, path, folder, folders, meters, authentication)
    plan = plan_workers(settings, section, path, folder)
    spawner = ForkSpawner(plan, folders, meters, authentication)
    refusal = device_refusal(plan.device)
    if refusal is not None:
        raise device_error(plan.settings, refusal)
    return spawner


def main() -> None:
    """Entry point."""
    replace_unknown_characters()
    with named("relaax-rlx-server"), restarting("relaax-rlx-server"):
        app(prog_name="relaax-rlx-server")


if __name__ == "__main__":
    main()
