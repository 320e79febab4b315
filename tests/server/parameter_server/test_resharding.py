from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.checkpoint import Checkpoint, Damaged
from relaax.optim.optimizers import Adam
from relaax.server.parameter_server.shard.model import ShardPosition
from relaax.server.parameter_server.shard.persistence import parts_for, recut
from support.parameter_servers import Models, fingerprint, parameter_client, registration
from support.shards import Shards, sharded

SIZE = 101


def manifest_of(count: int, size: int) -> dict[str, Any]:
    places = [ShardPosition(index, count) for index in range(count)]
    shards = [{"part": p.part, "start": p.range(size)[0], "end": p.range(size)[1]} for p in places]
    return {"shards": shards}


def parts_of(count: int, size: int) -> dict[str, dict[str, np.ndarray]]:
    vector = np.arange(size, dtype=np.float32)
    parts = {}
    for index in range(count):
        start, end = ShardPosition(index, count).range(size)
        updates = np.array([index + 1], np.int64)
        parts[f"shard-{index}"] = {
            "parameters": vector[start:end],
            "slots/mean": -vector[start:end],
            "slots/updates": updates,
        }
    return parts


@pytest.mark.parametrize("size", [4, 7, 100])
@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_resharding_keeps_the_order_of_elements(size: int, before: int, after: int) -> None:
    manifest, parts = manifest_of(before, size), parts_of(before, size)
    found = []
    for index in range(after):
        position = ShardPosition(index, after)
        needed = {name: parts[name] for name in parts_for(manifest, position)}
        parameters, slots = recut(Checkpoint("", needed, manifest), position)
        np.testing.assert_array_equal(slots["mean"], -parameters)
        assert slots["updates"].shape == (1,)
        found.append(parameters)
    np.testing.assert_array_equal(np.concatenate(found), np.arange(size))


def test_scalar_slot_gets_the_largest_value_of_the_parts() -> None:
    _, slots = recut(Checkpoint("", parts_of(4, 10), manifest_of(4, 10)), ShardPosition(0, 2))
    np.testing.assert_array_equal(slots["updates"], [2])


def test_slot_missing_in_one_part_is_damage() -> None:
    parts = parts_of(2, 4)
    del parts["shard-1"]["slots/mean"]
    with pytest.raises(Damaged, match="part shard-1 has nothing for slots/mean; 2 elements are expected"):
        recut(Checkpoint("", parts, manifest_of(2, 4)), ShardPosition())


def test_checkpoint_of_four_shards_restores_to_any_number(tmp_path: Path) -> None:
    models = Models(Adam(), learning_rate=0.1, end=100_000)
    described = fingerprint(size=SIZE)
    random = np.random.default_rng(0)

    def state_bytes(shards: Shards) -> dict[str, bytes]:
        states = [shard.core.state() for shard in shards.all]
        arrays = [
            state.parts[shard.core.position.part] for state, shard in zip(states, shards.all, strict=True) if state
        ]
        whole = {name: np.concatenate([a[name] for a in arrays]).tobytes() for name in ("parameters", "slots/mean")}
        return {**whole, "updates": arrays[0]["slots/updates"].tobytes()}

    with sharded(4, models, tmp_path) as shards, parameter_client(shards.addresses) as client:
        client.register(registration(fingerprint=described))
        client.pull()
        for _ in range(5):
            client.push(random.standard_normal(SIZE).astype(np.float32), env_steps=10)
        before = state_bytes(shards)
    for count in (1, 2, 3, 4):
        with sharded(count, models, tmp_path) as shards:
            assert state_bytes(shards) == before
            assert shards.leader.core.global_step == 50
            assert shards.leader.core.status().frames == 50
            assert shards.all[-1].version == 5
            with parameter_client(shards.addresses) as client:
                client.register(registration(fingerprint=described))
                client.push(None, env_steps=0, want_parameters=False)
            # This number of shards writes the checkpoint that the next number restores.
            assert shards.leader.checkpointer is not None
            shards.leader.checkpointer._saved_mark = None
            shards.leader.shards._saved = ()  # type: ignore[union-attr]
            assert shards.save()
