"""The command `relaax-rlx-server`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Annotated

# Read by the libraries below while they are imported: one thread, so that forking is safe.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import typer

from relaax.algorithm_base import BridgeBase, ConfigBase, load_algorithm
from relaax.configuration import (
    ConfigurationError,
    RlxServerSection,
    find_configuration,
    load_configuration,
    overrides_of,
)
from relaax.server.address import AddressError, listen, name_of, require_loopback
from relaax.server.logs import configure_logging
from relaax.server.native_messages import import_tensorflow
from relaax.server.options import (
    AllowAnonymousOption,
    ConfigOption,
    DeviceOption,
    LogLevelOption,
    SetOption,
    command_app,
)
from relaax.server.rlx_server.admission import Admission
from relaax.server.rlx_server.listener import Listener
from relaax.server.rlx_server.probe import device_refusal
from relaax.server.rlx_server.spawner import ForkSpawner, UnsafeFork
from relaax.server.rlx_server.worker import WorkerPlan

_log = logging.getLogger("relaax.server.rlx_server")

app = command_app()


@app.command()
def serve(
    config: ConfigOption,
    bind: Annotated[str | None, typer.Option(help="HOST:PORT for environments; port 0 picks a free one.")] = None,
    parameter_server: Annotated[str | None, typer.Option(help="HOST:PORT of the parameter server.")] = None,
    log_level: LogLevelOption = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a worker ends at its next episode's end.")
    ] = None,
    device: DeviceOption = None,
    allow_anonymous: AllowAnonymousOption = False,
    set_: SetOption = None,
) -> None:
    """Accept environments over RLX and run one worker agent for each connection.

    The command line wins over the file.
    """
    given = {
        "rlx-server.bind": bind,
        "rlx-server.parameter_server": parameter_server,
        "rlx-server.log_level": log_level,
        "rlx-server.timeout": timeout,
        "rlx-server.device": device,
        "rlx-server.allow_anonymous": allow_anonymous or None,
    }
    try:
        configuration = load_configuration(find_configuration(config), [*(set_ or []), *overrides_of(given)])
        settings = configuration.rlx_server
        configure_logging(settings.log_level)
        require_loopback(settings.bind, settings.allow_anonymous)
        import_tensorflow()
        algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
        algorithm_config = algorithm.configure(configuration.algorithm)
        plan = WorkerPlan(
            settings, algorithm, algorithm_config, _device(settings, algorithm_config), lambda: _bridge(settings)
        )
        spawner = ForkSpawner(plan)
        _require_device(plan)
        sock = listen(settings.bind)
    except (ConfigurationError, AddressError, UnsafeFork) as error:
        print(f"relaax-rlx-server: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    print(f"relaax-rlx-server listening on {name_of(sock)}", flush=True)
    listener = Listener(
        sock,
        spawner,
        Admission(settings.max_workers, settings.memory_reserve),
        handshake_timeout=settings.handshake_timeout,
        max_handshakes=settings.max_handshakes,
    )
    try:
        ended_by = listener.run()
    except UnsafeFork as error:
        print(f"relaax-rlx-server: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    _log.info("ended %s", f"by {signal.Signals(ended_by).name}" if ended_by else "with the training")
    raise typer.Exit(130 if ended_by == signal.SIGINT else 0)


def _device(settings: RlxServerSection, config: ConfigBase) -> str:
    """What workers compute on: `algorithm.gpu` counts where the server's own section says nothing."""
    return settings.device or ("gpu" if config.gpu else "cpu")


def _require_device(plan: WorkerPlan) -> None:
    """Raises ConfigurationError where workers would not find their device."""
    refusal = device_refusal(plan.device)
    if refusal is not None:
        by = "" if plan.settings.device else " (by algorithm.gpu)"
        raise ConfigurationError(f"relaax-rlx-server.device{by}: {refusal}")


def _bridge(settings: RlxServerSection) -> BridgeBase:
    """A worker's way to the parameter server. Called in the worker: gRPC must not exist before the fork."""
    import tensorflow as tf

    from relaax.bridge.grpc_bridge import GrpcBridge

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return GrpcBridge(settings.parameter_server)


def main() -> None:
    """Entry point."""
    app(prog_name="relaax-rlx-server")


if __name__ == "__main__":
    main()
