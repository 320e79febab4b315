from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, load_algorithm

DA3C = load_algorithm("da3c", Path())
VECTOR, ATARI = Box(shape=(4,)), Box(0, 255, shape=(84, 84), dtype=np.uint8)


def refusal(observation_space: Space, action_space: Space, **keys: Any) -> str | None:
    config = DA3C.configure({"path": "da3c"} | keys)
    refused = DA3C.refusal(config, observation_space, action_space)
    return refused.sentence if refused else None


@pytest.mark.parametrize(
    "space",
    [
        VECTOR,
        ATARI,
        Box(0, 255, shape=(84, 84, 3), dtype=np.uint8),
        Box(0, 1, shape=(2, 2, 2, 2)),
        Box(-5, 5, shape=(), dtype=np.int64),
        Discrete(10_000),
        MultiBinary(6),
        Tuple([Discrete(3), Dict({"x": VECTOR})]),
    ],
    ids=str,
)
def test_what_it_can_handle(space: Space) -> None:
    assert refusal(space, Discrete(3)) is None


@pytest.mark.parametrize(
    ("observation_space", "action_space", "sentence"),
    [
        (
            VECTOR,
            Box(-1, 1, shape=(2,)),
            "da3c cannot handle the action space Box(float32, [2], -1..1); it handles Discrete",
        ),
        (
            VECTOR,
            Tuple([Discrete(2)]),
            "da3c cannot handle the action space Tuple(Discrete(2)); it handles Discrete",
        ),
        (
            MultiDiscrete([2, 3]),
            Discrete(2),
            "da3c cannot handle the observation space MultiDiscrete([2, 3]): observations in MultiDiscrete([2, 3]) are"
            " not handled; Box, Discrete, MultiBinary and Tuple or Dict of them are",
        ),
        (
            Discrete(10_001),
            Discrete(2),
            "da3c cannot handle the observation space Discrete(10001): observations in Discrete(10001) would need 10001"
            " inputs; at most 10000 are handled",
        ),
        (
            Box(0, 255, shape=(84, 7), dtype=np.uint8),
            Discrete(2),
            "da3c cannot handle the observation space Box(uint8, [84, 7], 0..255): an image of [84, 7, 4] is too small"
            " for convolution 0, Convolution(filters=16, kernel=8, stride=4)",
        ),
    ],
    ids=["continuous", "tuple", "multi-discrete", "large", "small"],
)
def test_what_it_refuses_and_in_which_words(observation_space: Space, action_space: Space, sentence: str) -> None:
    assert refusal(observation_space, action_space) == sentence


def test_sizes_in_the_configuration_are_checked() -> None:
    assert refusal(ATARI, Discrete(18), state_size=[84, 84], action_size=18) is None
    assert refusal(ATARI, Discrete(6), state_size=[84, 84], action_size=18) == (
        "algorithm.action_size is 18, the client's action space is Discrete(6)"
    )
    assert refusal(VECTOR, Discrete(2), state_size=[84, 84]) == (
        "algorithm.state_size is [84, 84], the client's observation space is Box(float32, [4])"
    )


def parameters(space: Space, actions: int, **keys: Any) -> np.ndarray:
    config = DA3C.configure({"path": "da3c"} | keys)
    return DA3C.ParameterServer(config, space, Discrete(actions)).initial_parameters(0)


def test_the_network_follows_the_space() -> None:
    assert parameters(ATARI, 18).size == 681_027  # counted in tests/tf/test_networks.py
    assert parameters(ATARI, 18, history_len=1).size == 681_027 - 8 * 8 * 3 * 16
    # 4*64 + 64 + 64*64 + 64 + 64*2 + 2 + 64 + 1
    assert parameters(VECTOR, 2).size == 4_675


def test_all_actions_begin_almost_equally_likely() -> None:
    flat = parameters(VECTOR, 3, network={"dense": []})
    assert np.abs(flat[:12]).max() < 0.02
    assert np.linalg.norm(flat[15:19]) == pytest.approx(1.0, rel=1e-5), "the value's kernel"
