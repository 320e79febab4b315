"""Putting a parameter server together from its configuration."""

from __future__ import annotations

import logging
import platform
from pathlib import Path
from typing import Any

import google.protobuf
import grpc
import numpy as np
import safetensors
import tensorflow as tf

import relaax
from relaax.algorithm_base import ConfigBase, first_difference, load_algorithm
from relaax.bridge.options import MAX_PARAMETERS
from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.configuration import Configuration, ParameterServerSection, redacted
from relaax.metrics import MetricsWriter
from relaax.metrics.preface import RunPreface
from relaax.server.parameter_server.checkpointing import Checkpointer, Saved
from relaax.server.parameter_server.core import ParameterServer
from relaax.server.parameter_server.factory import AlgorithmModels
from relaax.server.parameter_server.reason import Ends, Reason
from relaax.server.parameter_server.server import Server

_log = logging.getLogger(__name__)


def assemble(configuration: Configuration, ends: Ends) -> Server:
    """A parameter server with its port bound and its checkpoint restored, ready to start.

    It runs until `ends` has a reason.

    Raises ConfigurationError, AddressError, ModelRefused and StoreError.
    """
    section = configuration.parameter_server
    algorithm = load_algorithm(configuration.algorithm_path, configuration.folder)
    config = algorithm.configure(configuration.algorithm)
    models = AlgorithmModels(algorithm, config)
    core = ParameterServer(
        models,
        first_difference,
        facts={"configuration": redacted(configuration.as_dict()), "seed": config.seed, "versions": _versions()},
        on_finished=lambda: ends.put(Reason.FINISHED),
    )
    manager = _manager(section)
    checkpointer = None
    if manager is not None:
        _resume(core, models, manager)
        checkpointer = Checkpointer(
            manager, core.state, section.checkpoint_interval, core.checkpoint_saved, saved=core.state()
        )
    metrics = None
    if section.metrics_dir is not None:
        preface = RunPreface(configuration.as_dict(), _hyperparameters(configuration, config))
        metrics = MetricsWriter(section.metrics_dir, core.scalars, preface=preface)
    longest = core.model.shard.size if core.model else MAX_PARAMETERS
    server = Server(core, section.bind, longest, ends, checkpointer, metrics)
    if manager is not None:
        # Only now: who holds the port is the one writer of the directory that its configuration names.
        manager.clean()
    return server


def _hyperparameters(configuration: Configuration, config: ConfigBase) -> dict[str, Any]:
    """What runs are compared by: the algorithm's keys, defaults included, and what its environments are."""
    run = configuration.run
    unused = "Adam" if config.optimizer == "rms_prop" else "RMSProp"
    keys = config.model_dump(mode="json", by_alias=True)
    return {
        "algorithm": Path(configuration.algorithm_path).stem,
        **{key: value for key, value in keys.items() if key not in ("path", unused)},
        "run": run.model_dump(include={"environment", "name", "clients", "envs_per_client", "arguments"}),
    }


def _manager(section: ParameterServerSection) -> CheckpointManager | None:
    if section.checkpoint_dir is None:
        _log.warning("no checkpoint directory is configured: what is learned is lost when this process ends")
        return None
    store = LocalStore(section.checkpoint_dir)
    return CheckpointManager(store, section.checkpoints_kept, section.best_checkpoints_kept)


def _resume(core: ParameterServer, models: AlgorithmModels, manager: CheckpointManager) -> None:
    checkpoint = manager.restore()
    if checkpoint is None:
        return
    core.resume(checkpoint, models.for_checkpoint(checkpoint.manifest))
    location = f"{manager.store.location}/{checkpoint.checkpoint_id}"
    core.checkpoint_saved(Saved(location, checkpoint.manifest["global_step"], checkpoint.manifest["time"]))
    _log.info("resuming from %s at global step %d", location, core.global_step)


def _versions() -> dict[str, str]:
    modules = (relaax, grpc, np, google.protobuf, safetensors, tf)
    return {"python": platform.python_version(), **{module.__name__: module.__version__ for module in modules}}
