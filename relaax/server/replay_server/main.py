"""The command `relaax-replay-server`."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING

from relaax.configuration import Configuration, ReplayServerSection
from relaax.configuration.roles import REPLAY_SERVER
from relaax.server.command.role import CommandError, exit_code, role_app, run_app, run_server
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.service_errors import MemoryExhausted

if TYPE_CHECKING:
    from relaax.server.replay_server.server import ReplayServer

_log = logging.getLogger(__name__)


def serve(configuration: Configuration) -> int:
    """Serve a shard of the replay memory, which workers fill and learners sample.

    The command line overrides environment variables (RELAAX_REPLAY_SERVER__BIND=...), which override the file.
    """
    settings = configuration.replay_server
    _, reason, safe = run_server(REPLAY_SERVER, lambda ends, closing: _assemble(settings, ends, closing))
    if not safe:
        _log.error("cannot write the last replay checkpoint: items inserted since the previous one are lost")
    return 1 if not safe or reason is Reason.SUPERSEDED else exit_code(reason)


def _assemble(settings: ReplayServerSection, ends: EndRequests, closing: ExitStack) -> ReplayServer:
    from relaax.server.replay_server.server import ReplayServer, read_replay_credentials
    from relaax.server.replay_server.service import ReplayService
    from relaax.server.replay_server.table_checkpoints import open_table_checkpoints

    # `shards` is 0 for an algorithm without replay servers; a server started by hand is then the only shard.
    shards = max(settings.shards, 1)
    try:
        service = ReplayService(_memory(settings), settings.shard, shards, settings.session_timeout)
        credentials = read_replay_credentials(settings)
        checkpoints = open_table_checkpoints(settings, service, ends, closing)
        return ReplayServer(service, settings.bind, ends, credentials, settings.status_bind, checkpoints)
    except MemoryExhausted as error:
        raise CommandError(error, 2) from None


def _memory(settings: ReplayServerSection) -> int:
    """Return the memory limit of all tables in bytes."""
    from relaax.metrics.system import available_memory
    from relaax.server.replay_server.service import GIGABYTE, table_bytes

    limit = table_bytes(settings, available_memory())
    message = "replay tables may use %.3g GB"
    if settings.memory is None:
        share = "half" if settings.shards <= 1 else f"1/{2 * settings.shards}"
        message += f", {share} of the available memory; set relaax-replay-server.memory for another limit"
    _log.info(message, limit / GIGABYTE)
    return int(limit)


app = role_app(
    REPLAY_SERVER, serve,
    "bind", "memory", "checkpoint_dir", "checkpoint_aws_s3", "aws_keys", "aws_endpoint", "status_bind", "log_level",
    "log_format", "allow_anonymous",
)  # fmt: skip


def main() -> None:
    """Run the command."""
    run_app(REPLAY_SERVER, app)


if __name__ == "__main__":
    main()
