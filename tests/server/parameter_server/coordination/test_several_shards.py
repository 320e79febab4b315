"""Several shards as one parameter server: pushes, checkpoints and restarts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from relaax.checkpoint import CheckpointManager, LocalStore
from relaax.server.command.termination import Reason
from support.parameter_servers import SIZE, gradient, parameter_client, registration
from support.shards import sharded


def test_client_pushes_to_and_pulls_from_three_shards() -> None:
    with sharded(3) as shards, parameter_client(shards.addresses) as client:
        registered = client.register(registration(environments=2))
        assert (registered.parameters, registered.actors, registered.global_step) == (SIZE, (0, 1), 0)
        pulled = client.pull()
        assert (pulled.version, pulled.parameters.flags.writeable) == (0, False)
        values = gradient(*range(1, SIZE + 1))
        pushed = client.push(values, env_steps=10)
        assert pushed.pulled is not None
        np.testing.assert_array_equal(pushed.pulled.parameters, -values)
        np.testing.assert_array_equal(shards.parameters, -values)
        assert (pushed.discarded, pushed.version, pushed.staleness, pushed.global_step) == (None, 1, 0, 10)
        assert client.pull() is pushed.pulled
        assert [shard.version for shard in shards.all] == [1, 1, 1]
        assert [shard.core.global_step for shard in shards.all] == [10, 0, 0]


def test_checkpoint_of_all_shards_is_restored(tmp_path: Path) -> None:
    with sharded(3, directory=tmp_path) as shards, parameter_client(shards.addresses) as client:
        client.register(registration())
        client.pull()
        client.push(gradient(*range(SIZE)), env_steps=10)
        shards.stop()
        assert shards.leader.ended == (Reason.TERMINATED, True)
        assert all(shard.ended is not None and shard.ended[1] for shard in shards.all)
    assert CheckpointManager(LocalStore(tmp_path)).published() == ["00000001-10"]
    with sharded(3, directory=tmp_path) as shards, parameter_client(shards.addresses) as client:
        np.testing.assert_array_equal(shards.parameters, -gradient(*range(SIZE)))
        assert client.register(registration()).global_step == 10


def test_restart_of_one_shard_restores_the_checkpoint_of_all(tmp_path: Path) -> None:
    with sharded(3, directory=tmp_path) as shards, parameter_client(shards.addresses) as client:
        client.register(registration())
        client.pull()
        client.push(gradient(*range(SIZE)), env_steps=10)
        assert shards.save()
        client.push(gradient(*range(SIZE)), env_steps=10)
        before = shards.leader.core.incarnation
        shards.all[2].vanish()
        shards.restart(2)
        shards.wait_serving()
        pushed = client.push(gradient(*range(SIZE)), env_steps=7)
        assert (pushed.discarded, pushed.global_step) == ("incarnation", 17)
        np.testing.assert_array_equal(shards.parameters, -gradient(*range(SIZE)))
        assert {shard.core.incarnation for shard in shards.all} == {shards.leader.core.incarnation}
        assert shards.leader.core.incarnation > before
        assert client.push(gradient(1), env_steps=1).discarded is None
