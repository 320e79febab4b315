from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Space
from relaax.algorithm_base.network import ActorCriticConfig, NetworkConfig, network_for, network_refusal
from relaax.configuration import ConfigurationError, validate_section

HEADS = {"value": 1, "advantage": 4}
GROUPS = (("value",), ("advantage",))
IMAGE, VECTOR, TINY = Box(0, 255, (84, 84), np.uint8), Box(shape=(3,)), Box(False, True, (2, 2, 4), np.bool_)


@pytest.mark.parametrize(
    ("space", "keys", "more", "used"),
    [
        (IMAGE, {}, {}, True),
        (IMAGE, {"dense": [32, 512]}, {}, True),
        (IMAGE, {}, {"groups": GROUPS}, True),
        (IMAGE, {"separate": True}, {"groups": GROUPS}, False),
        (IMAGE, {"dense": []}, {}, False),
        (IMAGE, {"convolutions": []}, {}, False),
        (IMAGE, {}, {"lstm": True}, False),
        (VECTOR, {}, {"groups": GROUPS}, False),
        (VECTOR, {"separate": False}, {"groups": GROUPS}, False),
        (TINY, {}, {}, False),
    ],
)
def test_streams_are_used_if_heads_share_convolutions(
    space: Space, keys: dict[str, Any], more: dict[str, Any], used: bool
) -> None:
    config = NetworkConfig(**keys)
    spec, plain = (network_for(config, space, HEADS, None, streams=streams, **more) for streams in (True, False))
    assert spec.streams is used
    assert not plain.streams
    assert network_refusal(config, space, HEADS, None, streams=True, **more) is None
    if used:
        last = f"dense{len(spec.dense) - 1}/bias"
        assert spec.layout().shapes[last] == (2 * spec.dense[-1],)
    else:
        assert spec == plain


def test_streams_count_towards_the_parameter_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    size = network_for(NetworkConfig(), IMAGE, HEADS, None).layout().size
    monkeypatch.setattr("relaax.algorithm_base.network.MAX_PARAMETERS", size)
    assert network_refusal(NetworkConfig(), IMAGE, HEADS, None) is None
    # 2592 x 256 + 256 parameters are added. The heads do not change.
    refused = network_refusal(NetworkConfig(), IMAGE, HEADS, None, streams=True)
    assert refused == (
        f"the network would have {size + 663_808} parameters, outputs included; at most {size} are supported"
    )


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"combine": "delay_compensated"},
            "sync all: all gradients are of the current version, and combine delay_compensated corrects older ones; "
            "set combine to fifo, or set sync to none",
        ),
        (
            {"optimizer": "worker_momentum"},
            "sync all: with optimizer worker_momentum workers send updates, whose mean is not the update of the mean "
            "gradient; set optimizer to momentum, or set sync to none",
        ),
        (
            {"sync_interval": 3},
            "sync all: a worker needs the parameters of each update; set sync_interval to 1, or set sync to none",
        ),
    ],
)
def test_impossible_synchronous_updates_are_refused(keys: dict[str, Any], sentence: str) -> None:
    validate_section(ActorCriticConfig, {"path": "x"} | keys, "algorithm")
    with pytest.raises(ConfigurationError) as refused:
        validate_section(ActorCriticConfig, {"path": "x", "sync": "all"} | keys, "algorithm")
    assert str(refused.value) == f"algorithm: {sentence}"


def test_patience_applies_to_synchronous_updates_only() -> None:
    for keys, patience in (({}, None), ({"sync": "all"}, 30.0), ({"sync": "all", "sync_patience": 2}, 2.0)):
        config = validate_section(ActorCriticConfig, {"path": "x"} | keys, "algorithm")
        assert config.update_patience == patience
    with pytest.raises(ConfigurationError, match="sync_patience: 0"):
        validate_section(ActorCriticConfig, {"path": "x", "sync_patience": 0}, "algorithm")
