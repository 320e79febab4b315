"""After a restore, the same pushes give the same bytes, for every optimizer and every value of `combine`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, ConfigBase, Discrete, ParameterServerBase
from relaax.checkpoint import Checkpoint, CheckpointManager, LocalStore
from relaax.hosting.fingerprint import fingerprint, first_difference
from relaax.parameters.interfaces import TRAIN
from relaax.parameters.moments import Moments
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ShardPosition
from relaax.server.parameter_server.shard.shard import Push
from support.algorithms import algorithm_of

SIZE, PUSHES, WORKERS = 23, 13, ("one", "two", "three")
SPACES = Box(shape=(4,)), Discrete(2)
OPTIMIZERS = get_args(ConfigBase.model_fields["optimizer"].annotation)
COMBINING = ("fifo", "delay_compensated")


class Declared(ParameterServerBase):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)

    def statistics(self) -> Mapping[str, int]:
        return {"observation": 4, "reward": 1}


def models(**keys: Any) -> tuple[AlgorithmModels, str, ConfigBase]:
    config = ConfigBase.model_validate({"path": "x", "max_global_step": 200, "seed": 5, **keys})
    algorithm = algorithm_of("x", Path(), ConfigBase, AgentBase, Declared)
    return AlgorithmModels(algorithm, config), fingerprint("x", config, *SPACES), config


class Cluster:
    """The shards of one model."""

    def __init__(self, shards: int, keys: Mapping[str, Any]) -> None:
        self._models, self._fingerprint, _ = models(**keys)
        self.shards = [
            ParameterServerCore(self._models, first_difference, position=ShardPosition(i, shards))
            for i in range(shards)
        ]

    def register(self, worker: str) -> list[int]:
        """Register with all shards and return the actor indices, which shard 0 assigns."""
        answers = [shard.register(worker, self._fingerprint, f"session {worker}", 2, TRAIN, 1) for shard in self.shards]
        return list(answers[0][1].actors)

    def resume(self, checkpoint: Checkpoint) -> None:
        for shard in self.shards:
            shard.resume(checkpoint, self._models.for_checkpoint(checkpoint.manifest))

    def push(self, number: int) -> None:
        """Push a gradient, statistics and an episode, which depend only on `number`. Workers take turns."""
        rng = np.random.default_rng(number)
        gradient = rng.normal(size=SIZE).astype(np.float32)
        worker, push_id = WORKERS[number % len(WORKERS)], number // len(WORKERS) + 1
        samples = {"observation": Moments.of(rng.normal(3, 2, (5, 4))), "reward": Moments.of(rng.normal(size=(5, 1)))}
        for index, shard in enumerate(self.shards):
            start, end = shard.position.range(SIZE)
            assert shard.model is not None
            version = shard.model.shard.counters.version
            shard.push(
                Push(
                    worker=worker,
                    push_id=push_id,
                    base_version=version - (number % 2 if number % PUSHES and version else 0),
                    gradient=gradient[start:end].copy(),
                    env_steps=0 if index else 7,
                    frames=0 if index else 28,
                    global_step=7 * number,
                    statistics={} if index else samples,
                )
            )
        self.shards[0].metrics.episodes([(float(rng.normal(20, 9)), int(rng.integers(1, 50)))])

    def state(self) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Return the global step, the parts and the manifest of all shards, as in a checkpoint."""
        parts: dict[str, Any] = {}
        shards: list[Any] = []
        for shard in reversed(self.shards):
            state = shard.state()
            assert state is not None
            parts.update(state.parts)
            shards = [*state.manifest["shards"], *shards]
        return state.global_step, parts, {**state.manifest, "shards": shards}

    def save(self, folder: Path) -> Checkpoint:
        """Save a checkpoint of all shards and load it."""
        manager = CheckpointManager(LocalStore(folder))
        return manager.load(manager.save(*self.state()).checkpoint_id)


def checkpoint_content(cluster: Cluster) -> dict[str, Any]:
    """Return the content of a checkpoint without its incarnation; arrays are bytes."""
    _, parts, manifest = cluster.state()
    arrays = {
        f"{part}/{name}": (array.dtype.str, array.shape, array.tobytes())
        for part, found in parts.items()
        for name, array in found.items()
    }
    return arrays | {key: value for key, value in manifest.items() if key != "incarnation"}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(
    ("optimizer", "combine"),
    [
        (optimizer, combine)
        for optimizer in OPTIMIZERS
        for combine in COMBINING
        # Delay compensation needs gradients, and works the same for all optimizers: two of them are enough.
        if (combine == "fifo" or optimizer in ("rms_prop", "adam"))
    ],
)
def test_pushes_after_a_restore_give_the_same_bytes(tmp_path: Path, optimizer: str, combine: str, shards: int) -> None:
    keys = {"optimizer": optimizer, "combine": combine}
    first = Cluster(shards, keys)
    actors = [first.register(worker) for worker in WORKERS]
    for number in range(PUSHES):
        first.push(number)
    checkpoint, before = first.save(tmp_path), checkpoint_content(first)

    second = Cluster(shards, keys)
    second.resume(checkpoint)
    assert checkpoint_content(second) == before
    assert second.shards[0].status().learning_rate == first.shards[0].status().learning_rate
    assert second.shards[0].status().mean_return_100 == first.shards[0].status().mean_return_100
    assert second.shards[0].incarnation > first.shards[0].incarnation

    assert [second.register(worker) for worker in WORKERS] == actors  # each session keeps its indices
    assert second.register("four") == first.register("four")
    for number in range(PUSHES, 2 * PUSHES):
        first.push(number)
        second.push(number)
        assert checkpoint_content(second) == checkpoint_content(first)
    assert checkpoint_content(first) != before


@pytest.mark.parametrize("shards", [1, 3])
def test_centered_optimizer_slots_are_split_like_parameters(tmp_path: Path, shards: int) -> None:
    keys = {"optimizer": "rms_prop", "RMSProp": {"centered": True}}
    first, second = Cluster(3, keys), Cluster(shards, keys)
    for worker in WORKERS:
        first.register(worker)
    for number in range(PUSHES):
        first.push(number)
    second.resume(first.save(tmp_path))
    assert vectors(second) == vectors(first)
    assert set(vectors(first)) == {"parameters", "mean", "mean_square"}
    if shards == 3:  # with another number of shards, workers restart their push numbers
        for number in range(PUSHES, 2 * PUSHES):
            first.push(number)
            second.push(number)
        assert vectors(second) == vectors(first)


def vectors(cluster: Cluster) -> dict[str, bytes]:
    """Return the parameters and slots of all shards, concatenated."""
    snapshots = [shard.model.shard.snapshot() for shard in cluster.shards if shard.model is not None]
    return {
        name: b"".join(({"parameters": one.parameters} | one.slots)[name].tobytes() for one in snapshots)
        for name in {"parameters": None} | snapshots[0].slots
    }


def test_changed_free_keys_keep_the_restored_state(tmp_path: Path) -> None:
    first = Cluster(1, {"optimizer": "adam"})
    for worker in WORKERS:
        first.register(worker)
    for number in range(PUSHES):
        first.push(number)
    checkpoint, before = first.save(tmp_path), checkpoint_content(first)
    second = Cluster(
        1,
        {
            "optimizer": "adam",
            "initial_learning_rate": 0.5,
            "max_global_step": 1000,
            "seed": 77,
            "combine": "delay_compensated",
        },
    )
    second.resume(checkpoint)
    now = checkpoint_content(second)
    assert {key for key in before if now[key] != before[key]} == {"fingerprint"}
    assert second.shards[0].status().learning_rate == pytest.approx(0.5 * (1 - 7 * PUSHES / 1000))
