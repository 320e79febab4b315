"""Checkpoints of other versions, with other counters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaax.checkpoint import Checkpoint, CheckpointManager, LocalStore
from relaax.hosting.fingerprint import first_difference
from relaax.parameters.interfaces import TRAIN
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ModelRefused
from relaax.server.parameter_server.shard.shard import Push
from support.parameter_servers import SIZE, Models, fingerprint

WORKER = "0" * 32


def server(models: Models) -> ParameterServerCore:
    return ParameterServerCore(models, first_difference)


def push(push_id: int, value: float) -> Push:
    return Push(WORKER, push_id, 0, np.full(SIZE, value, np.float32), 5, 5, 0)


def save(core: ParameterServerCore, folder: Path) -> Checkpoint:
    """Save the state of a server and load the checkpoint."""
    manager, state = CheckpointManager(LocalStore(folder)), core.state()
    assert state is not None
    manager.save(state.global_step, state.parts, state.manifest)
    checkpoint = manager.restore()
    assert checkpoint is not None
    return checkpoint


def trained(models: Models, pushes: list[Push]) -> ParameterServerCore:
    core = server(models)
    core.register(WORKER, fingerprint(), "", 1, TRAIN, 1)
    for sent in pushes:
        core.push(sent)
    return core


def resumed(models: Models, checkpoint: Checkpoint) -> ParameterServerCore:
    core = server(models)
    core.resume(checkpoint, fingerprint())
    core.register(WORKER, fingerprint(), "", 1, TRAIN, 1)
    return core


def test_checkpoint_with_unknown_counters_is_refused(tmp_path: Path) -> None:
    checkpoint = save(trained(Models(), [push(1, 2)]), tmp_path)
    manifest = json.loads(json.dumps(checkpoint.manifest))
    manifest["shards"][0]["counters"]["discarded_late"] = 3
    with pytest.raises(ModelRefused, match="does not support its counters discarded_late"):
        resumed(Models(), Checkpoint(checkpoint.checkpoint_id, checkpoint.parts, manifest))
