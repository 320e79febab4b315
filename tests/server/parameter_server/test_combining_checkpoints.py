"""What combining adds to a checkpoint, written to a store and read back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from relaax.algorithm_base import first_difference
from relaax.checkpoint import Checkpoint, CheckpointManager, LocalStore
from relaax.server.parameter_server.combining import Average
from relaax.server.parameter_server.core import ParameterServer
from relaax.server.parameter_server.counters import Counters
from relaax.server.parameter_server.model import ModelRefused, ModelSpec
from relaax.server.parameter_server.shard import Push
from support.parameter_servers import SIZE, Models, fingerprint

WORKER = "0" * 32


class AveragingModels(Models):
    def __call__(self, description: str) -> ModelSpec:
        spec = super().__call__(description)
        return ModelSpec(spec.initial, spec.optimizer, spec.schedule, spec.max_global_step, combine=Average(3))


def server(models: Models) -> ParameterServer:
    return ParameterServer(models, first_difference)


def push(push_id: int, value: float) -> Push:
    return Push(WORKER, push_id, 0, np.full(SIZE, value, np.float32), 5, 5, 0)


def stored(core: ParameterServer, folder: Path) -> Checkpoint:
    """The state of a server as it comes back from a disk."""
    manager, state = CheckpointManager(LocalStore(folder)), core.state()
    assert state is not None
    manager.save(state.global_step, state.parts, state.manifest)
    checkpoint = manager.restore()
    assert checkpoint is not None
    return checkpoint


def began(models: Models, pushes: list[Push]) -> ParameterServer:
    core = server(models)
    core.register(WORKER, fingerprint(), "", 1, False, 1)
    for sent in pushes:
        core.push(sent)
    return core


def resumed(models: Models, checkpoint: Checkpoint) -> ParameterServer:
    core = server(models)
    core.resume(checkpoint, fingerprint())
    core.register(WORKER, fingerprint(), "", 1, False, 1)
    return core


def test_a_pending_mean_goes_on_after_a_restart(tmp_path: Path) -> None:
    core = began(AveragingModels(), [push(1, 3), push(2, 6)])
    again = resumed(AveragingModels(), stored(core, tmp_path))
    for each in (core, again):
        applied = each.push(push(3, 9))
        assert applied is not None
        assert applied.counters == Counters(version=1, env_steps=15, frames=15)
        assert applied.parameters.tolist() == [-6.0] * SIZE


def test_a_gradient_that_only_waits_is_worth_a_new_checkpoint(tmp_path: Path) -> None:
    core = began(AveragingModels(), [])
    before = core.state()
    core.push(Push(WORKER, 1, 0, np.ones(SIZE, np.float32), 0, 0, 0))
    after = core.state()
    assert before is not None
    assert after is not None
    assert before.mark != after.mark


def test_a_checkpoint_of_before_there_were_these_counters_and_slots_comes_back(tmp_path: Path) -> None:
    checkpoint = stored(began(Models(), [push(1, 2)]), tmp_path)
    manifest = json.loads(json.dumps(checkpoint.manifest))
    for name in ("discarded_loss", "pending"):
        del manifest["shards"][0]["counters"][name]
    old = Checkpoint(checkpoint.checkpoint_id, checkpoint.parts, manifest)
    for models in (Models(), AveragingModels()):
        core = resumed(models, old)
        assert core.status().counters == Counters(version=1, env_steps=5, frames=5)
        assert core.model is not None
        assert core.model.shard.pull()[1].tolist() == [-2.0] * SIZE


def test_a_checkpoint_of_a_later_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    checkpoint = stored(began(Models(), [push(1, 2)]), tmp_path)
    manifest = json.loads(json.dumps(checkpoint.manifest))
    manifest["shards"][0]["counters"]["discarded_late"] = 3
    with pytest.raises(ModelRefused, match="does not know what it counts as discarded_late"):
        resumed(Models(), Checkpoint(checkpoint.checkpoint_id, checkpoint.parts, manifest))
