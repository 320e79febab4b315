"""After a restore the same next pushes give the same bytes, for every optimizer and way of combining gradients."""

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
        """The worker's actors, which shard 0 gives."""
        answers = [shard.register(worker, self._fingerprint, f"session {worker}", 2, TRAIN, 1) for shard in self.shards]
        return list(answers[0][1].actors)

    def resume(self, checkpoint: Checkpoint) -> None:
        for shard in self.shards:
            shard.resume(checkpoint, self._models.for_checkpoint(checkpoint.manifest))

    def push(self, number: int) -> None:
        """The same for the same number, by workers that take turns; every push brings statistics and an episode."""
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
        """Global step, parts and manifest of all shards together, as they publish them."""
        parts: dict[str, Any] = {}
        shards: list[Any] = []
        for shard in reversed(self.shards):
            state = shard.state()
            assert state is not None
            parts.update(state.parts)
            shards = [*state.manifest["shards"], *shards]
        return state.global_step, parts, {**state.manifest, "shards": shards}

    def saved(self, folder: Path) -> Checkpoint:
        """A checkpoint of all shards, through the disk."""
        manager = CheckpointManager(LocalStore(folder))
        return manager.load(manager.save(*self.state()).checkpoint_id)


def everything(cluster: Cluster) -> dict[str, Any]:
    """What its checkpoint would hold, but for the incarnation: bytes for arrays."""
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
        # Delays can be compensated for gradients only; the others are the same for all optimizers.
        if (combine == "fifo" or optimizer in ("rms_prop", "adam"))
    ],
)
def test_the_next_pushes_give_the_same_bytes(tmp_path: Path, optimizer: str, combine: str, shards: int) -> None:
    keys = {"optimizer": optimizer, "combine": combine}
    first = Cluster(shards, keys)
    actors = [first.register(worker) for worker in WORKERS]
    for number in range(PUSHES):
        first.push(number)
    checkpoint, then = first.saved(tmp_path), everything(first)

    second = Cluster(shards, keys)
    second.resume(checkpoint)
    assert everything(second) == then
    assert second.shards[0].status().learning_rate == first.shards[0].status().learning_rate
    assert second.shards[0].status().mean_return_100 == first.shards[0].status().mean_return_100
    assert second.shards[0].incarnation > first.shards[0].incarnation

    assert [second.register(worker) for worker in WORKERS] == actors  # each session has its own again
    assert second.register("four") == first.register("four")
    for number in range(PUSHES, 2 * PUSHES):
        first.push(number)
        second.push(number)
        assert everything(second) == everything(first)
    assert everything(first) != then


@pytest.mark.parametrize("shards", [1, 3])
def test_slots_of_a_centered_optimizer_are_cut_as_the_parameters_are(tmp_path: Path, shards: int) -> None:
    keys = {"optimizer": "rms_prop", "RMSProp": {"centered": True}}
    first, second = Cluster(3, keys), Cluster(shards, keys)
    for worker in WORKERS:
        first.register(worker)
    for number in range(PUSHES):
        first.push(number)
    second.resume(first.saved(tmp_path))
    assert vectors(second) == vectors(first)
    assert set(vectors(first)) == {"parameters", "mean", "mean_square"}
    if shards == 3:  # with another number of them workers count their pushes anew
        for number in range(PUSHES, 2 * PUSHES):
            first.push(number)
            second.push(number)
        assert vectors(second) == vectors(first)


def vectors(cluster: Cluster) -> dict[str, bytes]:
    """Parameters and slots of all shards, side by side."""
    snapshots = [shard.model.shard.snapshot() for shard in cluster.shards if shard.model is not None]
    return {
        name: b"".join(({"parameters": one.parameters} | one.slots)[name].tobytes() for one in snapshots)
        for name in {"parameters": None} | snapshots[0].slots
    }


def test_what_is_free_takes_its_new_value_and_leaves_the_rest(tmp_path: Path) -> None:
    first = Cluster(1, {"optimizer": "adam"})
    for worker in WORKERS:
        first.register(worker)
    for number in range(PUSHES):
        first.push(number)
    checkpoint, then = first.saved(tmp_path), everything(first)
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
    now = everything(second)
    assert {key for key in then if now[key] != then[key]} == {"fingerprint"}
    assert second.shards[0].status().learning_rate == pytest.approx(0.5 * (1 - 7 * PUSHES / 1000))
