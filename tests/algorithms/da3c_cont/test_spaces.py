from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Discrete, Space, Tuple, load_algorithm
from relaax.configuration import ConfigurationError

DA3C_CONT = load_algorithm("da3c_cont", Path())
VECTOR, CAMERA, FORCES = Box(shape=(24,)), Box(0, 255, shape=(84, 84), dtype=np.uint8), Box(-1, 1, shape=(4,))


def server(space: Space = VECTOR, actions: Space = FORCES, **keys: Any) -> Any:
    return DA3C_CONT.ParameterServer(DA3C_CONT.configure({"path": "da3c_cont"} | keys), space, actions)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "sentence"),
    [
        (
            Box(0, 255, shape=(10_000, 10_000), dtype=np.uint8),
            FORCES,
            "da3c_cont cannot handle the observation space Box(uint8, [10000, 10000], 0..255): the network would have"
            " 6379681593 parameters, outputs included; at most 50000000 are supported",
        ),
        (
            VECTOR,
            Box(-1, 1, shape=(2**20,)),
            "da3c_cont cannot handle the observation space Box(float32, [24]): the network would have 270667521"
            " parameters, outputs included; at most 50000000 are supported",
        ),
        (
            Box(-1, 1, shape=(40_000,)),
            FORCES,
            "da3c_cont cannot handle the observation space Box(float32, [40000], -1..1): at most 32768 numbers are"
            " normalised; set algorithm.normalize_observations to false",
        ),
        (
            Box(0, 1, shape=(64, 64)),
            FORCES,
            "da3c_cont cannot handle the observation space Box(float32, [64, 64], 0..1): it looks like an image, and"
            " convolutions support Boxes of uint8, [rows, columns] or [rows, columns, channels]; send such a Box, or"
            " set algorithm.network.flatten_images to true to use its 4096 numbers without convolutions",
        ),
    ],
    ids=["large image", "too many actions", "too much to normalise", "image of floats"],
)
def test_refusal_names_the_space_and_the_reason(observation_space: Space, action_space: Space, sentence: str) -> None:
    refused = DA3C_CONT.refusal(DA3C_CONT.configure({"path": "da3c_cont"}), observation_space, action_space)
    assert refused is not None
    assert refused.sentence == sentence


@pytest.mark.parametrize("actions", [FORCES, Box(shape=()), Tuple([FORCES, Box(0, np.inf, (2,), "float64")])], ids=str)
@pytest.mark.parametrize("space", [VECTOR, CAMERA, Discrete(5)], ids=str)
def test_supported_spaces_are_accepted(space: Space, actions: Space) -> None:
    assert DA3C_CONT.refusal(DA3C_CONT.configure({"path": "da3c_cont"}), space, actions) is None


def test_defaults() -> None:
    config = DA3C_CONT.configure({"path": "da3c_cont"})
    assert (config.initial_learning_rate, config.entropy_beta, config.lstm) == (1e-4, 1e-3, True)
    assert (config.network.dense, config.network.lstm_size, config.network.separate) == ([128], 128, None)
    assert (config.spherical, config.whole_episodes, config.initial_variance) == (False, False, 1.0)
    assert (config.normalize_observations, config.normalize_rewards, config.reward_clipping) == (True, "auto", None)


def test_missing_network_keys_keep_their_defaults() -> None:
    config = DA3C_CONT.configure({"path": "da3c_cont", "network": {"separate": True}})
    assert (config.network.dense, config.network.lstm_size) == ([128], 128)


@pytest.mark.parametrize("variance", [0.0, -1.0, float("inf")])
def test_invalid_initial_variance_is_refused(variance: float) -> None:
    with pytest.raises(ConfigurationError, match=r"algorithm\.initial_variance"):
        DA3C_CONT.configure({"path": "da3c_cont", "initial_variance": variance})


def test_network_size_follows_the_spaces() -> None:
    # 24*128 + 128, (128 + 128)*512 + 512, mean and variance 2*(128*4 + 4), value 128 + 1.
    assert server().initial_parameters(0).size == 3_200 + 131_584 + 1_032 + 129
    assert server(spherical=True).initial_parameters(0).size == 3_200 + 131_584 + 516 + 129 + 129
    # Two trunks of 24*128 + 128, and the heads.
    assert server(lstm=False, network={"separate": True}).initial_parameters(0).size == 6_400 + 1_032 + 129


def test_initial_policy_has_the_configured_variance() -> None:
    flat = server(lstm=False, initial_variance=0.25, network={"dense": []}).initial_parameters(0)
    biases = flat[24 * 4 + 4 + 24 * 4 :][:4]  # after the mean's kernel and bias and the variance's kernel
    np.testing.assert_allclose(np.log1p(np.exp(biases)) + 1e-6, 0.25, rtol=1e-5)


def test_declared_statistics_follow_the_configuration() -> None:
    assert server().statistics() == {"observation": 24, "return": 1}
    assert server(normalize_rewards=None).statistics() == {"observation": 24}
    assert server(CAMERA).statistics() == {}
    assert server(CAMERA, normalize_rewards="scale").statistics() == {"return": 1}
    assert server(normalize_observations=False, normalize_rewards="standardize").statistics() == {"reward": 1}
