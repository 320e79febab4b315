"""The command `relaax-rlx-server`."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from relaax.configuration import Configuration, ConfigurationError, RlxServerSection
from relaax.configuration.roles import RLX_SERVER
from relaax.server.address import listen, name_of
from relaax.server.command.hardware import device_error
from relaax.server.command.role import CommandError, announce, role_app, run_app
from relaax.server.rlx_server.clients.accounts import Authentication, ClientAccounts, read_authentication
from relaax.server.rlx_server.clients.claims import Claims
from relaax.server.rlx_server.clients.meters import Meters
from relaax.server.rlx_server.listening.admission import FORKED, SPAWNED, Admission
from relaax.server.rlx_server.listening.listener import Listener, Spawner
from relaax.server.rlx_server.listening.status import StatusPipe
from relaax.server.rlx_server.temporary_folders import WorkerFolders, remove_leftovers
from relaax.server.rlx_server.workers.plan import opponent_keys, plan_workers
from relaax.server.rlx_server.workers.spawners import ForkSpawner, SpawnSpawner, UnsafeFork, device_refusal

_log = logging.getLogger("relaax.server.rlx_server")


def serve(configuration: Configuration) -> int:
    """Accept environments over RLX and run one worker agent for each connection.

    The command line overrides environment variables (RELAAX_RLX_SERVER__BIND=...), which override the file.
    """
    return accept(configuration.rlx_server, partial(_spawner, configuration))


def accept(settings: RlxServerSection, make_spawner: Callable[[WorkerFolders, Meters, Authentication], Spawner]) -> int:
    """Accept environments until a signal or the end of training; return the exit code. Raises CommandError."""
    remove_leftovers()
    folders = WorkerFolders()
    authentication = read_authentication(settings)
    clients = ClientAccounts(settings.clients_file, authentication)
    claims = Claims(clients, settings.max_environments, settings.max_environments_per_address, settings.max_workers)
    try:
        spawner = make_spawner(folders, claims.meters, authentication)
    except UnsafeFork as error:
        raise CommandError(error, 2) from None
    sock = listen(settings.bind)
    status_sock = listen(settings.status_bind) if settings.status_bind else None
    announce(RLX_SERVER, listening=name_of(sock))
    status = None
    if status_sock is not None:
        status = StatusPipe(status_sock, settings.log_level, settings.log_format)
        announce(RLX_SERVER, status=name_of(status_sock))
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
        signal.signal(signal.SIGHUP, lambda *_: clients.request_reload())
    try:
        ended_by = listener.run()
    except UnsafeFork as error:
        raise CommandError(error, 1) from None
    _log.info("RLX server ended %s", f"by {signal.Signals(ended_by).name}" if ended_by else "with the training")
    return 130 if ended_by == signal.SIGINT else 0


def _configuration_in_run_directory(keys: Mapping[str, Any]) -> str:
    """Return the path of the configuration in the run directory of --checkpoint. Raises ConfigurationError."""
    checkpoint = keys["relaax-rlx-server.checkpoint"]
    file = Path(checkpoint or "") / "configuration.yaml"
    if checkpoint is None or not file.is_file():
        raise ConfigurationError(
            "--config is missing: give the YAML file of the experiment or the name of a bundled one, or name a run "
            "directory, which has a configuration, with --checkpoint"
        )
    return str(file)


def _spawner(
    configuration: Configuration, folders: WorkerFolders, meters: Meters, authentication: Authentication
) -> Spawner:
    """Return the spawner that `worker_start` selects. Raises ConfigurationError and UnsafeFork."""
    settings, section = configuration.rlx_server, configuration.algorithm
    path, folder = configuration.algorithm_path, configuration.folder
    opponents = opponent_keys(configuration)
    if settings.worker_start == "spawn":
        return SpawnSpawner(settings, section, path, folder, folders, meters, authentication, opponents)
    plan = plan_workers(settings, section, path, folder, opponents)
    spawner = ForkSpawner(plan, folders, meters, authentication)
    refusal = device_refusal(plan.device)
    if refusal is not None:
        raise device_error(plan.settings, refusal)
    return spawner


app = role_app(
    RLX_SERVER, serve,
    "bind", "parameter_server", "replay_server", "bridge", "wire_precision", "status_bind", "log_level", "log_format",
    "timeout", "device", "exploit", "checkpoint", "record", "aws_keys", "aws_endpoint", "allow_anonymous",
    without_config=(
        Annotated[
            str | None,
            typer.Option(
                help="The YAML file of the experiment, or the name of a bundled one. Not needed if --checkpoint is a "
                "run directory, which has a configuration."
            ),
        ],
        _configuration_in_run_directory,
    ),
)  # fmt: skip


def main() -> None:
    """Run the command."""
    run_app(RLX_SERVER, app)


if __name__ == "__main__":
    main()
