"""The target network of a shard: when it is copied, and how it is restored from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import AgentBase, Box, ConfigBase, Discrete, ParameterServerBase, TargetInterval
from relaax.algorithm_base.config import Schedule
from relaax.checkpoint import Checkpoint, CheckpointManager, Damaged, LocalStore
from relaax.hosting.fingerprint import fingerprint
from relaax.hosting.fingerprint import first_difference as difference
from relaax.nn.recycled_memory import own_memory
from relaax.optim.optimizers import RMSProp
from relaax.parameters.interfaces import TRAIN
from relaax.server.parameter_server.command.models import AlgorithmModels
from relaax.server.parameter_server.service.core import ParameterServerCore
from relaax.server.parameter_server.shard.model import ModelRefused, ShardPosition
from relaax.server.parameter_server.shard.shard import Push, PushRefused, Shard
from relaax.server.parameter_server.shard.state import Discard
from relaax.server.parameter_server.shard.target import MAX_AHEAD
from support.algorithms import algorithm_of
from support.parameter_servers import Descent, Models
from support.parameter_servers import fingerprint as description

pytestmark = pytest.mark.checks("relaax/server", "relaax/parameters")

FRAMES, UPDATES = TargetInterval(frames=100), TargetInterval(updates=3)
SIZE = 7


def shard(target: TargetInterval | None = FRAMES, size: int = 2, **options: Any) -> Shard:
    return Shard(np.zeros(size, np.float32), Descent(), Schedule(1.0), target=target, **options)


def push(push_id: int, *gradient: float, frames: int = 40, **changes: Any) -> Push:
    vector = np.array(gradient, np.float32) if gradient else None
    values: dict[str, Any] = {"base_version": 0, "env_steps": frames, "global_step": 0, "worker": "w", **changes}
    return Push(push_id=push_id, gradient=vector, frames=frames, **values)


def target_of(tested: Shard) -> tuple[int, list[float]]:
    assert tested.target is not None
    return tested.target.generation, tested.target.vector.tolist()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({}, "exactly one of frames and updates, not neither"),
        ({"frames": 1, "updates": 1}, "not both"),
        ({"frames": 0}, "frames of a TargetInterval must be an int of at least 1, not 0"),
        ({"updates": 1.5}, "updates of a TargetInterval must be an int of at least 1, not 1.5"),
    ],
)
def test_invalid_target_interval_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TargetInterval(**wrong)


def test_shard_without_an_interval_has_no_target() -> None:
    tested = shard(None)
    assert tested.push(push(1, 1, 1)).target_generation is None
    assert (tested.advance_target(5), tested.target_age, tested.snapshot().target) == (None, None, None)


def test_push_that_crosses_the_interval_is_in_the_copy() -> None:
    tested = shard()
    generations = [tested.push(push(number, 1, 1)).target_generation for number in range(1, 8)]
    assert generations == [0, 0, 1, 1, 2, 2, 2]
    assert target_of(tested) == (2, [-5, -5])
    assert tested.target_age == ("frames", 80)
    assert target_of(shard()) == (0, [0, 0])


def test_interval_in_updates_counts_only_applied_updates() -> None:
    tested = shard(UPDATES)
    tested.push(push(1, 1, 1))
    tested.push(push(2, np.nan, 1))
    tested.push(push(3))
    tested.push(push(4, 1, 1, base_version=1))
    assert target_of(tested) == (0, [0, 0])
    assert tested.push(push(5, 1, 1, base_version=2)).target_generation == 1
    assert target_of(tested) == (1, [-3, -3])
    assert tested.target_age == ("updates", 0)


def test_several_intervals_in_one_push_make_one_copy() -> None:
    tested = shard()
    assert tested.push(push(1, 1, 2, frames=350)).target_generation == 3
    assert target_of(tested) == (3, [-1, -2])
    assert tested.push(push(2, 1, 1, frames=49)).target_generation == 3
    assert tested.push(push(3, 1, 1, frames=1)).target_generation == 4


@pytest.mark.parametrize("gradient", [(), (np.nan, 1)])
def test_frames_of_a_push_without_an_update_count(gradient: Sequence[float]) -> None:
    tested = shard(max_staleness=0)
    tested.push(push(1, 1, 1, frames=50))
    applied = tested.push(push(2, *gradient, frames=50))
    assert (applied.target_generation, target_of(tested)) == (1, (1, [-1, -1]))
    stale = tested.push(push(3, 1, 1, frames=100))
    assert (stale.outcome.discard, stale.target_generation) == (Discard.STALE, 2)


def test_repeated_push_makes_no_copy() -> None:
    tested = shard()
    tested.push(push(1, 1, 1, frames=100))
    copied = tested.target
    tested.push(push(1, 1, 1, worker="other", frames=99))
    again = tested.push(push(1, 1, 1, frames=100))
    assert (again.repeated, again.target_generation) == (True, 1)
    assert tested.target is copied
    assert target_of(tested) == (1, [-1, -1])


def test_other_shards_copy_at_the_generation_of_a_push() -> None:
    tested = shard(start=5)
    for number in (1, 2, 3):
        assert tested.push(push(number, 1, 1, frames=1000)).target_generation == 0, (
            "frames of other shards do not count"
        )
    # The copy is made before the push that carries the new generation: it is then closest to the copy of shard 0.
    assert tested.push(push(4, 1, 1, target_generation=2)).target_generation == 2
    assert target_of(tested) == (2, [-3, -3])
    tested.push(push(4, 1, 1, target_generation=7))
    tested.push(push(5, 1, 1, target_generation=1))
    assert target_of(tested) == (2, [-3, -3])
    assert tested.advance_target(3) is tested.target
    assert target_of(tested) == (3, [-5, -5])
    assert tested.target_age is None
    with pytest.raises(PushRefused):
        tested.push(push(6, 1, 1, target_generation=9, base_version=99))
    assert target_of(tested) == (3, [-5, -5])


def test_huge_generation_does_not_stop_later_copies() -> None:
    tested = shard(start=5)
    tested.push(push(1, 1, 1))
    tested.advance_target(2**52)
    generation, copied = target_of(tested)
    assert (generation, copied) == (MAX_AHEAD, [-1, -1])
    tested.push(push(2, 1, 1, target_generation=generation + 1))
    assert target_of(tested) == (generation + 1, [-1, -1]), "the next generation is copied"


def test_shard_far_behind_catches_up_in_several_messages() -> None:
    tested = shard(start=5)
    for _ in range(4):
        tested.advance_target(3 * MAX_AHEAD)
    assert target_of(tested)[0] == 3 * MAX_AHEAD


def test_shard_0_ignores_generations_in_messages() -> None:
    tested = shard()
    tested.push(push(1, 1, 1, target_generation=9))
    tested.advance_target(9)
    assert target_of(tested) == (0, [0, 0])


@pytest.mark.parametrize("on_device", [False, pytest.param(True, marks=pytest.mark.slow)])  # it loads TensorFlow
def test_target_copy_does_not_change(on_device: bool) -> None:
    tested = Shard(np.ones(2, np.float32), RMSProp(), Schedule(0.1), target=UPDATES, on_device=on_device)
    expected: list[tuple[int, bytes]] = [(0, np.ones(2, np.float32).tobytes())]
    held = [tested.target]
    for number in range(1, 16):
        applied = tested.push(push(number, 1, -1, base_version=number - 1))
        assert applied.parameters is not None
        if number % 3 == 0:
            expected.append((number // 3, applied.parameters.tobytes()))
            held.append(tested.target)
    assert [(copy.generation, copy.vector.tobytes()) for copy in held if copy is not None] == expected
    assert tested.target is not None and not tested.target.vector.flags.writeable


def test_target_copy_of_shared_memory_does_not_change() -> None:
    tested = Shard(np.ones(2, np.float32), RMSProp(), Schedule(0.1), target=UPDATES)
    live = tested.share(own_memory).vectors[0]
    for number in (1, 2, 3):
        live += 1
        tested.push(push(number, base_version=number - 1, applied=True))
    assert target_of(tested) == (1, [4, 4])
    live += 1
    tested.push(push(4, base_version=3, applied=True))
    assert target_of(tested) == (1, [4, 4])


def cores(count: int, interval: TargetInterval | None, size: int = SIZE) -> list[ParameterServerCore]:
    """Return all shards of a model in this process, with one worker registered with each."""
    models = Models(target=interval)
    found = [ParameterServerCore(models, difference, position=ShardPosition(i, count)) for i in range(count)]
    for core in found:
        core.register("w", description(size=size), "", 1, TRAIN, 1)
    return found


def shard_of(core: ParameterServerCore) -> Shard:
    assert core.model is not None
    return core.model.shard


def train(shards: Sequence[ParameterServerCore], begin: int, end: int, synced: bool = True) -> None:
    """Push the numbers from `begin` up to `end`, each with 40 frames and one update.

    If `synced`, each push carries the generation of shard 0 to the other shards.
    """
    for number in range(begin, end):
        for core in shards:
            first = core.position.index == 0
            start, stop = core.position.range(SIZE)
            gradient = np.arange(start, stop, dtype=np.float32) + number
            core.push(
                push(
                    number,
                    *gradient,
                    frames=40 if first else 0,
                    base_version=shard_of(core).counters.version,
                    target_generation=target_of(shard_of(shards[0]))[0] if synced else 0,
                )
            )


def save(shards: Sequence[ParameterServerCore], folder: Path) -> Checkpoint:
    """Save a checkpoint of all shards and load it."""
    states = [core.state() for core in shards]
    found: dict[str, Any] = {}
    described: list[Any] = []
    for state in states:
        assert state is not None
        found.update(state.parts)
        described.extend(state.manifest["shards"])
    assert states[0] is not None
    manager = CheckpointManager(LocalStore(folder))
    made = manager.save(states[0].global_step, found, {**states[0].manifest, "shards": described})
    return manager.load(made.checkpoint_id)


def resumed(count: int, checkpoint: Checkpoint, interval: TargetInterval | None) -> list[ParameterServerCore]:
    models = Models(target=interval)
    found = [ParameterServerCore(models, difference, position=ShardPosition(i, count)) for i in range(count)]
    for core in found:
        core.resume(checkpoint, json.dumps(checkpoint.manifest["fingerprint"]))
        core.register("w", description(size=SIZE), "", 1, TRAIN, 1)
    return found


def generations_and_target(shards: Sequence[ParameterServerCore]) -> tuple[list[int], list[float]]:
    """Return the generation of every shard, and the complete target network."""
    found = [target_of(shard_of(core)) for core in shards]
    return [generation for generation, _ in found], [number for _, vector in found for number in vector]


def parameters(shards: Sequence[ParameterServerCore]) -> list[float]:
    return [number for core in shards for number in shard_of(core).pull()[1].tolist()]


@pytest.mark.parametrize("interval", [FRAMES, UPDATES])
def test_target_is_restored_to_any_number_of_shards(tmp_path: Path, interval: TargetInterval) -> None:
    shards = cores(2, interval)
    train(shards, 1, 6)
    generation = target_of(shard_of(shards[0]))[0]
    assert generation == {"frames": 2, "updates": 1}[interval.unit]
    expected = generations_and_target(shards)[1]
    assert expected != parameters(shards)
    for count in (2, 3, 1, 2):
        shards = resumed(count, save(shards, tmp_path / str(count)), interval)
        assert generations_and_target(shards) == ([generation] * count, expected)
        assert shard_of(shards[0]).snapshot().counters.frames == 200


def test_resumed_training_copies_the_same_targets(tmp_path: Path) -> None:
    first = cores(2, FRAMES)
    train(first, 1, 7)
    second = resumed(2, save(first, tmp_path), FRAMES)
    for number in range(7, 14):
        train(first, number, number + 1)
        train(second, number, number + 1)
        assert generations_and_target(second) == generations_and_target(first)
        assert shard_of(second[0]).target_age == shard_of(first[0]).target_age


def test_parts_of_two_generations_restore_to_the_parameters(tmp_path: Path) -> None:
    shards = cores(2, FRAMES)
    train(shards, 1, 4, synced=False)
    assert generations_and_target(shards)[0] == [1, 0]
    now = parameters(shards)
    checkpoint = save(shards, tmp_path)
    for count in (2, 3, 1):
        again = resumed(count, checkpoint, FRAMES)
        assert generations_and_target(again) == ([1] * count, now)
        if count == 2:
            train(again, 4, 7)
            assert generations_and_target(again)[0] == [2, 2]


def test_checkpoint_without_target_restores_to_the_parameters(tmp_path: Path) -> None:
    shards = cores(2, None)
    without_target = [shard_of(core) for core in shards]
    for tested in without_target:
        tested.push(push(1, *[1.0] * tested.size, frames=250 if tested.start == 0 else 0))
    now = parameters(shards)
    checkpoint = save(shards, tmp_path)
    assert all("target_generation" not in shard for shard in checkpoint.manifest["shards"])
    for count in (2, 3):
        assert generations_and_target(resumed(count, checkpoint, FRAMES)) == ([2] * count, now)


def test_model_without_a_target_drops_the_saved_one(tmp_path: Path) -> None:
    shards = cores(2, FRAMES)
    train(shards, 1, 6)
    again = resumed(2, save(shards, tmp_path / "first"), None)
    assert [shard_of(core).target for core in again] == [None, None]
    found = save(again, tmp_path / "second")
    assert [set(arrays) for arrays in found.parts.values()] == [{"parameters"}] * 2
    assert all("target_generation" not in shard for shard in found.manifest["shards"])


@pytest.mark.parametrize(
    ("other", "generation", "next_copies"),
    [
        (TargetInterval(frames=1000), 2, [2, 2, 2, 3]),  # starts at 240 frames, and each push adds 200
        (TargetInterval(frames=30), 8, [14, 21, 28, 34]),
        (TargetInterval(updates=4), 2, [2, 3, 3, 3]),
    ],
)
def test_copies_continue_with_a_changed_interval(
    tmp_path: Path, other: TargetInterval, generation: int, next_copies: list[int]
) -> None:
    first = cores(1, FRAMES)
    train(first, 1, 7)
    before = generations_and_target(first)
    assert before[0] == [2]
    second = resumed(1, save(first, tmp_path), other)
    assert generations_and_target(second) == ([generation], before[1])
    tested, found, copied = shard_of(second[0]), [generation], before[1]
    for number in range(7, 11):
        version = tested.counters.version
        applied = tested.push(push(number, *[1.0] * SIZE, frames=200 if other.frames else 0, base_version=version))
        assert applied.parameters is not None and applied.target_generation is not None
        found.append(applied.target_generation)
        if found[-1] > found[-2]:
            copied = applied.parameters.tolist()
        assert target_of(tested)[1] == copied
    assert found[1:] == next_copies
    # A checkpoint with the changed interval restores the same state.
    third = resumed(1, save(second, tmp_path / "third"), other)
    assert generations_and_target(third) == generations_and_target(second)


def test_part_without_the_target_is_damaged(tmp_path: Path) -> None:
    shards = cores(1, FRAMES)
    train(shards, 1, 6)
    checkpoint = save(shards, tmp_path)
    arrays = {part: {k: v for k, v in a.items() if k != "target"} for part, a in checkpoint.parts.items()}
    with pytest.raises(Damaged, match="nothing for target; 7 elements are expected"):
        resumed(1, replace(checkpoint, parts=arrays), FRAMES)


def test_roll_back_restores_the_target(tmp_path: Path) -> None:
    shards = cores(2, FRAMES)
    train(shards, 1, 6)
    checkpoint, before = save(shards, tmp_path), generations_and_target(shards)
    train(shards, 6, 20)
    assert generations_and_target(shards) != before
    for core in shards:
        core.roll_back(checkpoint, json.dumps(checkpoint.manifest["fingerprint"]), core.incarnation + 1)
    assert generations_and_target(shards) == before


def test_new_target_copy_changes_the_mark() -> None:
    shards = cores(2, FRAMES)
    train(shards, 1, 4, synced=False)
    tested = shard_of(shards[1])
    before = shards[1].mark()
    state = shards[1].state()
    assert state is not None and state.mark == before
    tested.advance_target(1)
    assert shards[1].mark() != before


def test_target_age_is_a_metric_of_shard_0() -> None:
    shards = cores(2, FRAMES)
    train(shards, 1, 5)
    assert shards[0].scalars()[1]["target/age_frames"] == 40
    assert [name for name in shards[1].scalars()[1] if name.startswith("target/")] == []
    by_updates = cores(1, UPDATES)
    train(by_updates, 1, 6)
    assert by_updates[0].scalars()[1]["target/age_updates"] == 2
    without = cores(1, None)
    shard_of(without[0]).push(push(1, *[1.0] * SIZE))
    assert [name for name in without[0].scalars()[1] if name.startswith("target/")] == []


class Declared(ParameterServerBase):
    def initial_parameters(self, seed: int) -> np.ndarray:
        return np.zeros(3, np.float32)

    def target_interval(self) -> TargetInterval | None:
        return TargetInterval(frames=self.config.model_extra["every"]) if "every" in self.config.model_extra else None


class Config(ConfigBase, extra="allow"):
    pass


def test_algorithm_declares_the_target_interval() -> None:
    def spec(**keys: Any) -> Any:
        config = Config.model_validate({"path": "x", **keys})
        algorithm = algorithm_of("x", Path(), Config, AgentBase, Declared)
        return AlgorithmModels(algorithm, config)(fingerprint("x", config, Box(shape=(4,)), Discrete(2)))

    assert spec().target is None
    assert spec(every=7).target == TargetInterval(frames=7)
    with pytest.raises(ModelRefused, match="frames of a TargetInterval must be an int of at least 1, not 0"):
        spec(every=0)
