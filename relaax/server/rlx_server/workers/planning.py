"""Plans of workers from the configuration: made once in a server that forks, and in each spawned worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from relaax.algorithm_base import ConfigBase, load_algorithm
from relaax.checkpoint import StoreError
from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.extras import missing
from relaax.server.command_configuration import check_bridge
from relaax.server.devices import device_of
from relaax.server.native_messages import load_tensorflow_quietly
from relaax.server.replay_access import replay_source
from relaax.server.rlx_server.workers.worker_plan import WorkerPlan
from relaax.server.targets import targets

if TYPE_CHECKING:
    from relaax.parameters.channel import Target
    from relaax.parameters.interfaces import ParameterClientBase


def plan_workers(settings: RlxServerSection, section: Mapping[str, Any], path: str, folder: Path) -> WorkerPlan:
    """Import the algorithm at `path`, relative to `folder`, with what its agents need, and check its `section`.

    Raises ConfigurationError.
    """
    load_tensorflow_quietly()
    from relaax.parameters.precision import prepare

    prepare(settings.wire_precision)  # compiled before the fork, for all workers
    algorithm = load_algorithm(path, folder)
    config = algorithm.configure(section)
    check_bridge(settings, config)
    source = parameter_source(settings, config)
    replay = replay_source(settings, algorithm)
    device = device_of(settings, config)
    algorithm.prepare(config, device)
    return WorkerPlan(settings, algorithm, config, device, source, replay)


def parameter_source(settings: RlxServerSection, config: ConfigBase) -> Callable[[], ParameterClientBase]:
    """Return what makes a worker's client: of the parameter server, or of checkpoints. Raises ConfigurationError."""
    if settings.checkpoint is None:
        servers = targets(settings)
        return lambda: make_client(settings, servers)
    from relaax.checkpoint.location import open_location
    from relaax.server.rlx_server.workers.checkpoint_client import CheckpointClient  # before the fork: workers share it

    location = settings.checkpoint
    try:
        open_location(location, settings.aws_keys, settings.aws_endpoint)
    except (StoreError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"relaax-rlx-server.checkpoint: {missing(error) or error}") from None
    # A worker opens a store of its own: connections to S3 do not survive a fork.
    return lambda: CheckpointClient(open_location(location, settings.aws_keys, settings.aws_endpoint), config)


def make_client(settings: RlxServerSection, servers: Sequence[Target]) -> ParameterClientBase:
    """Return a worker's client of the parameter server at `servers`.

    Called in the worker, as a gRPC object does not survive a fork.
    """
    from relaax.nn.devices import use_one_thread
    from relaax.parameters.client import ParameterClient

    use_one_thread()
    return ParameterClient(
        servers,
        unavailable_after=settings.parameter_server_patience,
        way=settings.bridge,
        wire_precision=settings.wire_precision,
    )
