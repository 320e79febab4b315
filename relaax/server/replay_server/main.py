"""The command `relaax-replay-server`."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from relaax.library_variables import missing_from

# The libraries imported below read these.
os.environ.update(missing_from(os.environ))

import typer

from relaax.configuration import Configuration, ConfigurationError, ReplayServerSection, overrides_of
from relaax.configuration.roles import REPLAY_SERVER
from relaax.extras import named
from relaax.log_lines import print_error
from relaax.metrics.memory import available_memory
from relaax.output import replace_unknown_characters
from relaax.server.address import AddressError
from relaax.server.checkpoint_storage import location_overrides
from relaax.server.command_configuration import configured, require_private_ports, show, whole
from relaax.server.key_options import key_options
from relaax.server.logs import configure_logging
from relaax.server.options import (
    CheckConfigOption,
    ConfigOption,
    PrintConfigOption,
    SetOption,
    VersionOption,
    command_app,
)
from relaax.server.replay_server.server import read_replay_credentials
from relaax.server.replay_server.service import GIGABYTE, table_bytes
from relaax.server.service_errors import MemoryExhausted
from relaax.server.shard_option import check_position, position_keys
from relaax.server.termination import EndRequests, Reason, signal_reasons
from relaax.transport.process_resources import allow_descriptors

if TYPE_CHECKING:
    from relaax.server.replay_server.server import ReplayServer

_log = logging.getLogger(__name__)

app = command_app()


@app.command()
@key_options(
    REPLAY_SERVER,
    "bind", "memory", "checkpoint_dir", "checkpoint_aws_s3", "aws_keys", "aws_endpoint", "status_bind", "log_level",
    "log_format", "allow_anonymous",
)  # fmt: skip
def serve(
    config: ConfigOption,
    keys: dict[str, Any],
    shard: Annotated[
        str | None, typer.Option(metavar="I/K", help="Which shard of how many this is, from 0, such as 0/4.")
    ] = None,
    set_: SetOption = None,
    print_config: PrintConfigOption = False,
    check_config: CheckConfigOption = False,
    version: VersionOption = False,
) -> None:
    """Hold a shard of the replay memory that workers fill and learners sample.

    The command line wins over environment variables (RELAAX_REPLAY_SERVER__BIND=...), and these over the file.
    """
    try:
        given = {**keys, **position_keys(shard, "replay-server")}
        configuration = configured(
            config, [*(set_ or []), *overrides_of(given), *location_overrides(REPLAY_SERVER, given)]
        )
        settings = configuration.replay_server
        check_position(settings.shard, _shards(settings), REPLAY_SERVER.section)
        if print_config or check_config:
            show(config, whole(configuration), print_config)
            raise typer.Exit(0)
        configure_logging(settings.log_level, settings.log_format)
        require_private_ports(settings)
    except (ConfigurationError, AddressError) as error:
        _give_up(error, 2)
    raise typer.Exit(_run(configuration))


def _shards(settings: ReplayServerSection) -> int:
    """Return how many shards there are: one that is started by hand for an algorithm without any is the only one."""
    return max(settings.shards, 1)


def _run(configuration: Configuration) -> int:
    """Serve until the end; return the exit code."""
    allow_descriptors()
    ends = EndRequests()
    # A second signal finds the last checkpoint being written or the process ending, and disturbs neither.
    with ends.signals(signal_reasons(), afterwards=signal.SIG_IGN), ExitStack() as closing:
        server = _assemble(configuration.replay_server, ends, closing)
        server.start()
        print(f"relaax-replay-server listening on {server.address}", flush=True)
        if server.status_address:
            print(f"relaax-replay-server status at http://{server.status_address}", flush=True)
        reason, safe = server.run()
    if not safe:
        _log.error("the last checkpoint could not be written: what was inserted since the one before is lost")
    if not safe or reason is Reason.SUPERSEDED:
        return 1
    return 130 if reason is Reason.INTERRUPTED else 0


def _assemble(settings: ReplayServerSection, ends: EndRequests, closing: ExitStack) -> ReplayServer:
    """Assemble the server; on failure end the process with one sentence."""
    from relaax.checkpoint import LeaseWaitInterrupted, NoneUsable, StoreError
    from relaax.server.replay_server.keeping import open_keeping
    from relaax.server.replay_server.server import ReplayServer
    from relaax.server.replay_server.service import ReplayService

    try:
        service = ReplayService(_memory(settings), settings.shard, _shards(settings), settings.session_timeout)
        credentials = read_replay_credentials(settings)
        keeping = open_keeping(settings, service, ends, closing)
        return ReplayServer(service, settings.bind, ends, credentials, settings.status_bind, keeping)
    except (ConfigurationError, AddressError, NoneUsable, MemoryExhausted) as error:
        _give_up(error, 2)
    except StoreError as error:
        _give_up(error, 1)
    except LeaseWaitInterrupted as interruption:
        _give_up(interruption, 130 if ends.get() is Reason.INTERRUPTED else 0)


def _memory(settings: ReplayServerSection) -> int:
    """Return the bytes that tables may take."""
    found = table_bytes(settings, available_memory())
    said = "tables may take %.3g GB"
    if settings.memory is None:
        share = "half" if settings.shards <= 1 else f"1/{2 * settings.shards}"
        said += f", {share} of what is available now; relaax-replay-server.memory sets another bound"
    _log.info(said, found / GIGABYTE)
    return int(found)


def _give_up(error: Exception, code: int) -> NoReturn:
    print_error("relaax-replay-server", error)
    raise typer.Exit(code) from None


def main() -> None:
    """Run the command."""
    replace_unknown_characters()
    with named("relaax-replay-server"):
        app(prog_name="relaax-replay-server")


if __name__ == "__main__":
    main()
