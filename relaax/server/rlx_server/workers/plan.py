"""Plan of a server's workers, from the configuration: made once by a server that forks, and by each spawned worker."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from relaax.algorithm_base import ConfigBase
from relaax.checkpoint import LocalStore, Milestones, Store, StoreError, StoreUnavailable, open_store
from relaax.configuration import Configuration, ConfigurationError, RlxServerSection
from relaax.hosting.loader import Algorithm, load_algorithm
from relaax.libraries import missing
from relaax.parameters.interfaces import ParameterClientBase
from relaax.replay.interfaces import ReplayMemory
from relaax.rlx import Hello, Mode
from relaax.server.access import MakeReplay, replay_source, replay_use, targets
from relaax.server.command.configuration import check_bridge
from relaax.server.command.hardware import device_of, load_tensorflow_quietly
from relaax.transport import segments

if TYPE_CHECKING:
    from relaax.server.rlx_server.workers.opponents import OpponentSource
    from relaax.transport.channel import Target


_log = logging.getLogger(__name__)

RANDOM = "random"
"""The path of an algorithm that acts at random, without a parameter server."""


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Data common to all workers of a server.

    device: the device that computes (see `relaax.nn.devices`).
    make_replay: returns a connected replay memory; None if the algorithm uses none, or workers only act.
    opponents: the checkpoints with which connections in exploit mode act; None if they act with the newest parameters.
    inference: the socket of the inference process; None if workers compute themselves.
    """

    settings: RlxServerSection
    algorithm: Algorithm
    config: ConfigBase
    device: str
    make_client: Callable[[], ParameterClientBase]
    make_replay: MakeReplay | None = None
    opponents: OpponentSource | None = None
    inference: bytes | None = None

    def shares_inference(self, mode: Mode) -> bool:
        """Return whether the inference process computes the actions of a connection in this mode."""
        if self.inference is None:
            return False
        if mode == Mode.EXPLOIT:
            return self.opponents is None  # opponents have parameters of older checkpoints
        return self.algorithm.learns_separately(self.config)

    def replay_of(self, hello: Hello, session: str, actors: Sequence[int], client: str = "") -> ReplayMemory | None:
        """Return the replay memory of a connection, or None. `client`: its authenticated name. Raises ReplayError."""
        if self.make_replay is None or hello.mode == Mode.EXPLOIT:
            return None
        spaces = hello.observation_space, hello.action_space
        return self.make_replay(
            replay_use(self.algorithm, self.config, spaces, actors=actors, session=session, client=client)
        )


def plan_workers(
    settings: RlxServerSection,
    section: Mapping[str, Any],
    path: str,
    folder: Path,
    opponents: OpponentKeys | None = None,
) -> WorkerPlan:
    """Import the algorithm at `path`, relative to `folder`, and check its `section`. Raises ConfigurationError."""
    if path == RANDOM:
        return random_plan(settings)
    load_tensorflow_quietly()
    check_record(settings)
    from relaax.parameters.precision import prepare

    prepare(settings.wire_precision)  # loaded before the fork, for all workers
    algorithm = load_algorithm(path, folder)
    config = algorithm.configure(section)
    check_bridge(settings, config)
    check_inference(settings, algorithm, config)
    source = parameter_source(settings, config)
    replay = replay_source(settings, algorithm)
    device = device_of(settings, config)
    algorithm.prepare(config, device)
    return WorkerPlan(settings, algorithm, config, device, source, replay, opponent_source(opponents))


@dataclass(frozen=True, slots=True)
class OpponentKeys:
    """The section `opponents`, and the location of checkpoints in `relaax-parameter-server`.

    Its fields are JSON, for workers in new processes.
    """

    keep: int
    every: int
    checkpoint_dir: str | None
    checkpoint_aws_s3: Sequence[str] | None
    aws_keys: str | None
    aws_endpoint: str | None

    def open_store(self) -> Store:
        """Return the store of the checkpoints. Raises StoreError, ConfigurationError and ModuleNotFoundError."""
        if self.checkpoint_aws_s3 is not None:
            return open_store(self.checkpoint_aws_s3, self.aws_keys, self.aws_endpoint)
        assert self.checkpoint_dir is not None, "opponent_keys requires a location"
        return LocalStore(self.checkpoint_dir)


def opponent_keys(configuration: Configuration) -> OpponentKeys | None:
    """Return the keys of opponents; None without them, or if the server acts with checkpoints itself.

    Raises ConfigurationError if the parameter server's checkpoints have no location.
    """
    section, stored = configuration.opponents, configuration.parameter_server
    if section.every is None or configuration.rlx_server.checkpoint is not None:
        return None
    if stored.checkpoint_dir is None and stored.checkpoint_aws_s3 is None:
        raise ConfigurationError(
            "opponents act with the checkpoints of the parameter server, and relaax-parameter-server has no location "
            "for them: set checkpoint-dir or checkpoint-aws-s3, or omit opponents"
        )
    s3 = stored.checkpoint_aws_s3
    return OpponentKeys(
        section.keep,
        section.every,
        stored.checkpoint_dir,
        None if s3 is None else tuple(s3),
        stored.aws_keys,
        stored.aws_endpoint,
    )


def opponent_source(keys: OpponentKeys | None) -> OpponentSource | None:
    """Return where workers find the checkpoints of opponents; None without opponents.

    Raises ConfigurationError if the store cannot be opened.
    """
    if keys is None:
        return None
    from relaax.server.rlx_server.workers.opponents import OpponentSource  # before the fork, so that workers share it

    try:
        store = keys.open_store()
        store.check()
        store.list()
    except StoreUnavailable as error:
        _log.warning("opponents: %s; workers try again", error)
    except (StoreError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"opponents: this server cannot open the checkpoints of the parameter server: {missing(error) or error}"
        ) from None
    return OpponentSource(keys.open_store, Milestones(keys.keep, keys.every))


def check_inference(settings: RlxServerSection, algorithm: Algorithm, config: ConfigBase) -> None:
    """Raise ConfigurationError if the inference process cannot act for workers."""
    if settings.inference != "shared":
        return
    if not segments.SUPPORTED:
        raise ConfigurationError(
            "relaax-rlx-server.inference: shared needs memory that is passed by descriptor, as on Linux: set it to "
            "worker"
        )
    if not (settings.only_acts or algorithm.learns_separately(config)):
        raise ConfigurationError(
            f"relaax-rlx-server.inference: shared is for workers that only act, and those of {algorithm.name} compute "
            "gradients with this configuration: set it to worker, set exploit to true, or choose an algorithm whose "
            "learners are separate"
        )


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
