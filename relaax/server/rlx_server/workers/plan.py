"""Plan of a server's workers, from the configuration: made once by a server that forks, and by each spawned worker."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from relaax.algorithm_base import ConfigBase
from relaax.checkpoint import StoreError
from relaax.configuration import ConfigurationError, RlxServerSection
from relaax.hosting.loader import Algorithm, load_algorithm
from relaax.libraries import missing
from relaax.parameters.interfaces import ParameterClientBase
from relaax.replay.interfaces import ReplayMemory
from relaax.rlx import Hello, Mode
from relaax.server.access import MakeReplay, replay_source, replay_use, targets
from relaax.server.command.configuration import check_bridge
from relaax.server.command.hardware import device_of, load_tensorflow_quietly

if TYPE_CHECKING:
    from relaax.transport.channel import Target


RANDOM = "random"
"""The path of an algorithm that acts at random, without a parameter server."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Data common to all workers of a server.

    device: the device that computes (see `relaax.nn.devices`).
    make_replay: returns a connected replay memory; None if the algorithm uses none, or workers only act.
    """

    settings: RlxServerSection
    algorithm: Algorithm
    config: ConfigBase
    device: str
    make_client: Callable[[], ParameterClientBase]
    make_replay: MakeReplay | None = None

    def replay_of(self, hello: Hello, session: str, actors: Sequence[int], client: str = "") -> ReplayMemory | None:
        """Return the replay memory of a connection, or None. `client`: its authenticated name. Raises ReplayError."""
        if self.make_replay is None or hello.mode == Mode.EXPLOIT:
            return None
        spaces = hello.observation_space, hello.action_space
        return self.make_replay(
            replay_use(self.algorithm, self.config, spaces, actors=actors, session=session, client=client)
        )


def plan_workers(settings: RlxServerSection, section: Mapping[str, Any], path: str, folder: Path) -> WorkerPlan:
    """Import the algorithm at `path`, relative to `folder`, and check its `section`. Raises ConfigurationError."""
    if path == RANDOM:
        return random_plan(settings)
    load_tensorflow_quietly()
    check_record(settings)
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


def check_record(settings: RlxServerSection) -> None:
    """Raise ConfigurationError if episodes cannot be recorded. Arrow is not imported: that starts threads."""
    if settings.record is None:
        return
    if find_spec("pyarrow") is None:
        sentence = missing(ModuleNotFoundError(name="pyarrow"))
        raise ConfigurationError(f"relaax-rlx-server.record: {sentence}")
    try:
        Path(settings.record).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.record):
            pass
    except OSError as error:
        raise ConfigurationError(f"relaax-rlx-server.record {settings.record}: {error.strerror}") from None


def random_plan(settings: RlxServerSection) -> WorkerPlan:
    """Return the plan of workers that act at random, without a parameter server. Raises ConfigurationError."""
    from relaax.nn.devices import CPU
    from relaax.server.rlx_server.random_actions import NoParameters, RandomActions

    check_record(settings)
    exports = SimpleNamespace(Config=ConfigBase, Agent=RandomActions)
    algorithm = Algorithm(RANDOM, Path(__file__), exports)
    return WorkerPlan(settings, algorithm, ConfigBase(path=RANDOM), CPU, NoParameters)


def parameter_source(settings: RlxServerSection, config: ConfigBase) -> Callable[[], ParameterClientBase]:
    """Return a factory of clients that read parameters from servers or checkpoints. Raises ConfigurationError."""
    if settings.checkpoint is None:
        servers = targets(settings)
        return lambda: make_client(settings, servers)
    from relaax.checkpoint.location import open_location
    from relaax.server.rlx_server.workers.checkpoint_client import (
        CheckpointClient,  # before the fork, so that workers share it
    )

    location = settings.checkpoint
    try:
        open_location(location, settings.aws_keys, settings.aws_endpoint)
    except (StoreError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"relaax-rlx-server.checkpoint: {missing(error) or error}") from None
    # Each worker opens its own store: connections to S3 do not survive a fork.
    return lambda: CheckpointClient(open_location(location, settings.aws_keys, settings.aws_endpoint), config)


def make_client(settings: RlxServerSection, servers: Sequence[Target]) -> ParameterClientBase:
    """Return a parameters client. Call this in the worker: gRPC objects do not survive a fork."""
    from relaax.nn.devices import use_one_thread
    from relaax.parameters.client import ParameterClient

    use_one_thread()
    return ParameterClient(
        servers,
        unavailable_after=settings.parameter_server_patience,
        transport=settings.bridge,
        wire_precision=settings.wire_precision,
    )
