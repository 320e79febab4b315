"""A client of several shards: pushes as a whole, and pushes that reach only some shards."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters import received as received_state
from relaax.parameters.client import ParameterClient, Transport
from relaax.parameters.interfaces import ParameterServerError
from relaax.parameters.shard_client import shard_range
from support.parameter_servers import SIZE, Models, gradient, parameter_client, registration
from support.shards import Shards, sharded

ONES = gradient(*[1.0] * SIZE)


@pytest.mark.parametrize("parameters", [4, 5, 7, 1000])
@pytest.mark.parametrize("shards", [1, 2, 3, 4])
def test_ranges_are_contiguous_and_of_similar_length(parameters: int, shards: int) -> None:
    ranges = [shard_range(parameters, shard, shards) for shard in range(shards)]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == parameters
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    lengths = [end - start for start, end in ranges]
    assert max(lengths) - min(lengths) <= 1


def test_all_shards_must_be_named_in_their_order() -> None:
    with sharded(2) as shards:
        first, second = shards.addresses
        for addresses, sentence in (
            ([first], "is one of 2 shards, but 1 address was given: name them all, shard 0 first"),
            ([first, second, second], "is one of 2 shards, but 3 addresses were given"),
            ([second, first], "is shard 1, but it is listed as shard 0"),
        ):
            with parameter_client(addresses) as parameters_client, pytest.raises(ParameterServerError, match=sentence):
                parameters_client.register(registration())


def test_a_model_with_fewer_parameters_than_shards_is_refused() -> None:
    with (
        sharded(SIZE + 1) as shards,
        parameter_client(shards.addresses) as parameters_client,
        pytest.raises(ParameterServerError, match=f"the model has {SIZE} parameters: too few for {SIZE + 1} shards"),
    ):
        parameters_client.register(registration())


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_push_counts_as_discarded_if_any_shard_discards_it(transport: Transport) -> None:
    with (
        sharded(2, Models(max_staleness=0)) as shards,
        parameter_client(shards.addresses, transport=transport) as parameters_client,
    ):
        parameters_client.register(registration())
        parameters_client.pull()
        broken = ONES.copy()
        broken[-1] = np.nan
        pushed = parameters_client.push(broken, env_steps=3)
        assert (pushed.discarded, pushed.global_step) == ("not_finite", 3)
        np.testing.assert_array_equal(shards.parameters, [-1] * 4 + [0] * 4)
        assert [shard.version for shard in shards.all] == [1, 0]
        # The first shard is one version ahead. Each shard computes the staleness of its own part.
        assert parameters_client.push(ONES, env_steps=3, want_parameters=False).discarded is None
        assert parameters_client.push(ONES, env_steps=3).staleness == 1


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
def test_unmodified_parameters_are_not_sent_again(transport: Transport) -> None:
    with (
        sharded(2) as shards,
        parameter_client(shards.addresses, transport=transport) as parameters_client,
        parameter_client(shards.addresses, transport=transport) as other,
    ):
        for each in (parameters_client, other):
            each.register(registration())
        pulled = parameters_client.pull()
        other.pull()
        half = ONES.copy()
        half[:4] = np.nan
        other.push(half, env_steps=1)
        again = parameters_client.pull()
        assert again is not pulled
        np.testing.assert_array_equal(again.parameters, [0] * 4 + [-1] * 4)
        assert parameters_client.pull() is again


class FilledNumpy:
    """numpy with NaN in new memory, which otherwise may contain the expected values by chance."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def empty(shape: int, dtype: Any) -> Any:
        return np.full(shape, np.nan, dtype)


@pytest.mark.parametrize("transport", ["grpc", "shared_memory"])
@pytest.mark.parametrize("changed", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}])
def test_modified_and_unmodified_shards_are_joined(
    transport: Transport, changed: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(received_state, "np", FilledNumpy())
    with (
        sharded(3) as shards,
        parameter_client(shards.addresses, transport=transport) as parameters_client,
        parameter_client(shards.addresses, transport=transport) as other,
    ):
        for each in (parameters_client, other):
            each.register(registration())
            each.pull()
        # All elements are different and not 0, so that none is in the right place by chance.
        other.push(gradient(*range(1, SIZE + 1)), env_steps=1)
        before = parameters_client.pull().parameters.copy()
        np.testing.assert_array_equal(before, -gradient(*range(1, SIZE + 1)))
        step = gradient(*range(100, 100 + SIZE))
        expected = before.copy()
        for shard in range(3):
            part = slice(*shard_range(SIZE, shard, 3))
            if shard in changed:
                expected[part] -= step[part]
            else:
                step[part] = np.nan
        other.push(step, env_steps=1)
        pulled = parameters_client.pull()
        np.testing.assert_array_equal(pulled.parameters, expected)
        assert parameters_client.pull() is pulled
        # The same holds for the answer to its own push.
        again = parameters_client.push(step, env_steps=1).pulled
        assert again is not None
        np.testing.assert_array_equal(again.parameters, expected - np.nan_to_num(step))
        np.testing.assert_array_equal(pulled.parameters, expected)


def test_close_deregisters_from_all_shards() -> None:
    with sharded(3) as shards:
        with parameter_client(shards.addresses) as parameters_client:
            parameters_client.register(registration())
            assert [shard.core.status().workers for shard in shards.all] == [1, 1, 1]
        assert [shard.core.status().workers for shard in shards.all] == [0, 0, 0]


@pytest.mark.parametrize("arrived", [0, 1])
def test_half_a_push_in_a_checkpoint_counts_its_steps_once(tmp_path: Path, arrived: int) -> None:
    with sharded(2, directory=tmp_path) as shards, parameter_client(shards.addresses) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        parameters_client.push(ONES, env_steps=10)
        _one_part_only(parameters_client, arrived)
        assert shards.save()
        _lose(shards)
        pushed = parameters_client.push(ONES, env_steps=5)
        assert (pushed.discarded, pushed.global_step) == ("incarnation", 15)
        counters = shards.leader.core.model.shard.counters
        assert (counters.env_steps, counters.frames) == (15, 15)
        expected = -ONES
        start, end = shard_range(SIZE, arrived, 2)
        expected[start:end] -= 1  # half of a push is applied, which asynchronous training tolerates
        np.testing.assert_array_equal(shards.parameters, expected)


def test_a_push_answered_before_a_roll_back_is_counted_again(tmp_path: Path) -> None:
    with sharded(2, directory=tmp_path) as shards, parameter_client(shards.addresses) as parameters_client:
        parameters_client.register(registration())
        parameters_client.pull()
        parameters_client.push(ONES, env_steps=10)
        assert shards.save()
        _lose(shards)
        pushed = parameters_client.push(ONES, env_steps=5)
        assert (pushed.discarded, pushed.global_step) == ("incarnation", 15)
        np.testing.assert_array_equal(shards.parameters, -ONES)


def _one_part_only(parameters_client: ParameterClient, shard: int) -> None:
    """Send only one shard its part of the next push, like a worker that is disconnected from the other shard."""
    link = parameters_client._links[shard]
    common = pb.PushRequest(env_steps=5, global_step=parameters_client.global_step)
    call = link.push(parameters_client._worker_id, parameters_client._incarnation, common, ONES)
    call.method(call.request, timeout=30)
    link._push_id -= 1


def _lose(shards: Shards) -> None:
    shards.all[1].vanish()
    shards.restart(1)
    shards.wait_serving()
