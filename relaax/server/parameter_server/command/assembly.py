"""The assembly of a parameter server from its configuration."""

from __future__ import annotations

import json
import logging
import platform
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import google.protobuf
import grpc
import numpy as np
import safetensors

import relaax
from relaax.algorithm_base import ConfigBase
from relaax.checkpoint import Checkpoint, CheckpointManager, Milestones, StoreUnavailable, open_store, sequence
from relaax.configuration import Configuration, ParameterServerSection, redacted
from relaax.configuration.key_types import UnknownHomeError
from relaax.hosting.fingerprint import first_difference
from relaax.hosting.loader import Algorithm
from relaax.lessons.episode_log import EpisodeLog
from relaax.lessons.ratings import OpponentRatings
from relaax.metrics import MetricsWriter
from relaax.metrics.copying import MetricsCopy
from relaax.metrics.run_description import RunDescription
from relaax.metrics.writer import newest_number
from relaax.nn.tensorflow_loading import is_loaded, tf
from relaax.server.access import shard_target
from relaax.server.checkpoints.checkpointing import Checkpointer, Saved
from relaax.server.checkpoints.spool import Spool, default_folder
from relaax.server.checkpoints.storage import open_leased, retry_while_unavailable, warn_of_versions
from relaax.server.command.configuration import description
from relaax.server.command.termination import EndRequests, Reason
from relaax.server.parameter_server.command.credentials import read_credentials
from relaax.server.parameter_server.command.initialization import other_training
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.command.server import Server
from relaax.server.parameter_server.coordination.coordinator import Alone, Coordinator
from relaax.server.parameter_server.coordination.follower import Follower
from relaax.server.parameter_server.coordination.leader import Leader
from relaax.server.parameter_server.coordination.members import introduction
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ShardPosition
from relaax.server.parameter_server.shard.persistence import parts_for
from relaax.server.tracker.launch import TrackerProcess, instructions_of
from relaax.transport.grpc_options import MAX_PARAMETERS

_log = logging.getLogger(__name__)


def open_manager(
    section: ParameterServerSection,
    ends: EndRequests,
    closing: ExitStack,
    leads: bool = True,
    milestones: Milestones | None = None,
) -> CheckpointManager | None:
    """Return the manager of checkpoints; None if no location is configured.

    `milestones`: of the opponents. For other arguments see `open_leased`.
    """
    if (opened := open_leased(section, ends, closing, leads)) is None:
        return None
    store, lease = opened
    return CheckpointManager(
        store, section.checkpoints_kept, section.best_checkpoints_kept, lease, milestones=milestones
    )


def open_spool(section: ParameterServerSection, manager: CheckpointManager, ends: EndRequests) -> Spool | None:
    """Deliver the checkpoint that an earlier process left in the spool. Return the spool for the last checkpoint.

    Return None if checkpoints are in a folder, or if several shards write a part each. Raises StoreError and
    LeaseWaitInterrupted.
    """
    if section.checkpoint_aws_s3 is None or section.shards > 1:
        return None
    try:
        folder = Path(section.checkpoint_spool) if section.checkpoint_spool else default_folder()
    except UnknownHomeError:
        _log.warning(
            "the last checkpoint is lost if S3 is unreachable at the end: set checkpoint_spool, XDG_STATE_HOME or HOME"
        )
        return None
    spool = Spool(folder, manager, section.aws_endpoint)
    retry_while_unavailable(spool.deliver, ends)
    return spool


def metrics_folder(section: ParameterServerSection, closing: ExitStack) -> Path | None:
    """Return the folder of the TensorBoard run; None if metrics are not written.

    If metrics are copied to S3, `closing` ends the copying. Raises StoreError and ConfigurationError.
    """
    if section.metrics_aws_s3 is None:
        return None if section.metrics_dir is None else Path(section.metrics_dir)
    store = open_store(section.metrics_aws_s3, section.aws_keys, section.aws_endpoint)
    names = []
    try:
        store.check()
        warn_of_versions(store)
        names = [name for name in store.list() if newest_number([name])]
    except StoreUnavailable as error:
        _log.warning("the metrics in S3 cannot be listed; new metrics are copied when S3 is available: %s", error)
    folder = Path(section.metrics_dir or closing.enter_context(tempfile.TemporaryDirectory(prefix="relaax-metrics-")))
    if names:  # new files must sort after those in the store
        folder.mkdir(parents=True, exist_ok=True)
        (folder / max(names, key=lambda name: newest_number([name]))).touch()
    copy = MetricsCopy(folder, store)
    copy.start()
    closing.callback(copy.close)
    return folder


def assemble(configuration: Configuration, algorithm: Algorithm, ends: EndRequests, closing: ExitStack) -> Server:
    """Return a parameter server of this algorithm with its port bound and its checkpoint restored, ready to start.

    It runs until `ends` has a reason. The caller closes `closing` after the server has ended, or if this raises.

    Raises ConfigurationError, AddressError, ModelRefused, StoreError and LeaseWaitInterrupted.
    """
    section = configuration.parameter_server
    credentials = read_credentials(section)
    position = ShardPosition(section.shard, section.shards)
    opponents = configuration.opponents
    config = algorithm.configure(configuration.algorithm)
    models = AlgorithmModels(algorithm, config, other_training(section))
    core = ParameterServerCore(
        models,
        first_difference,
        facts={"configuration": redacted(configuration.as_dict()), "seed": config.seed, "versions": _versions()},
        on_finished=lambda: ends.put(Reason.FINISHED),
        position=position,
        curriculum=configuration.curriculum() if position.index == 0 else None,
        ratings=OpponentRatings(opponents.keep, opponents.every) if opponents.every and position.index == 0 else None,
    )
    core.description = description(algorithm.name, config)
    milestones = Milestones(opponents.keep, opponents.every) if opponents.every else None
    manager = open_manager(section, ends, closing, leads=position.index == 0, milestones=milestones)
    if manager is None:
        _log.warning("no checkpoint location is configured: the model is lost when this process ends")
    made, spool = 0, None
    if manager is not None and position.index == 0:
        spool = open_spool(section, manager, ends)
        made = _resume(core, models, manager, ends)
    described = json.dumps({**json.loads(core.description), "seed": config.seed})
    own = introduction(position, described, manager.store.location if manager else "")
    coordinator: Coordinator
    if position.index:
        coordinator = Follower(core, own, shard_target(section), models.for_checkpoint, manager, ends)
    elif position.count > 1:
        coordinator = Leader(core, own, models.for_checkpoint, manager)
    else:
        coordinator = Alone(core, manager)
    create_checkpointer = partial(
        Checkpointer,
        interval=section.checkpoint_interval,
        steps=section.checkpoint_steps,
        every=opponents.every,
        step=lambda: core.global_step,
        on_saved=core.checkpoint_saved,
        on_late=core.checkpoint_late,
        made=made,
    )
    metrics = None
    folder = metrics_folder(section, closing) if position.index == 0 else None
    if folder is not None and core.parameter_names:
        record = EpisodeLog(folder, core.parameter_names)
        closing.callback(record.close)
        core.on_episodes = record.add
    if folder is not None:
        preface = RunDescription(configuration.as_dict(), _hyperparameters(configuration, config))
        metrics = MetricsWriter(folder, core.scalars, preface=preface, origin=lambda: core.origin)
    longest = core.model.shard.size if core.model else MAX_PARAMETERS
    server = Server(
        core,
        section.bind,
        longest,
        ends,
        coordinator.checkpointer(create_checkpointer, spool),
        metrics,
        status_bind=section.status_bind,
        credentials=credentials,
        coordinator=coordinator,
        tracker=TrackerProcess(instructions_of(configuration)) if section.tracker and position.index == 0 else None,
    )
    if manager is not None and position.index == 0:
        manager.clean()
    return server


def _hyperparameters(configuration: Configuration, config: ConfigBase) -> dict[str, Any]:
    """Return the values by which runs are compared: the algorithm's keys, with defaults, and the environments."""
    run = configuration.run
    keys = config.model_dump(mode="json", by_alias=True)
    return {
        "algorithm": Path(configuration.algorithm_path).stem,
        **{key: value for key, value in keys.items() if key != "path" and key not in config.unused_sections},
        "run": run.model_dump(
            include={"environment", "name", "clients", "envs_per_client", "connections_per_client", "arguments"}
        ),
    }


def _resume(core: ParameterServerCore, models: AlgorithmModels, manager: CheckpointManager, ends: EndRequests) -> int:
    """Resume from the newest checkpoint, if there is one. Return the checkpoint's number, else 0."""
    parts = partial(parts_for, position=core.position)

    def use(checkpoint: Checkpoint) -> None:
        core.resume(checkpoint, models.for_checkpoint(checkpoint.manifest))

    checkpoint = retry_while_unavailable(lambda: manager.restore(parts, use), ends)
    if checkpoint is None:
        return 0
    location = f"{manager.store.location}/{checkpoint.checkpoint_id}"
    core.checkpoint_saved(Saved(location, checkpoint.manifest["global_step"], checkpoint.manifest["time"]))
    _log.info("the parameter server is resuming from %s at global step %d", location, core.global_step)
    return sequence(checkpoint.checkpoint_id)


def _versions() -> dict[str, str]:
    modules = (relaax, grpc, np, google.protobuf, safetensors)
    versions = {module.__name__: str(module.__version__) for module in modules}
    if is_loaded():
        versions["tensorflow"] = str(tf.__version__)
    return {"python": platform.python_version(), **versions}
