from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, load_algorithm
from relaax.algorithm_base.network import actor_critic_network
from relaax.nn.distributions import Categorical

DA3C = load_algorithm("da3c", Path())
VECTOR, ATARI = Box(shape=(4,)), Box(0, 255, shape=(84, 84), dtype=np.uint8)
CAMERA = Box(0, 255, shape=(64, 64, 3), dtype=np.uint8)
CAMERA_AND_SPEED = Dict({"camera": CAMERA, "speed": Box(shape=(2,))})


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
        CAMERA_AND_SPEED,
        Tuple([Dict({"x": VECTOR, "y": Tuple([CAMERA])}), Discrete(3)]),
        Tuple([CAMERA]),
    ],
    ids=str,
)
def test_supported_spaces_are_accepted(space: Space) -> None:
    assert refusal(space, Discrete(3)) is None


@pytest.mark.parametrize(
    "space",
    [
        Discrete(2, start=7),
        MultiDiscrete([2, 9]),
        MultiBinary(3),
        MultiBinary([2, 2]),
        Box(-1, 1, shape=(2,)),
        Tuple([Discrete(2)]),
        Dict({"move": Box(-1, 1, shape=(2,)), "arms": Tuple([Discrete(2), MultiDiscrete([2, 3]), MultiBinary(3)])}),
    ],
    ids=str,
)
def test_supported_action_spaces_are_accepted(space: Space) -> None:
    assert refusal(VECTOR, space) is None


@pytest.mark.parametrize(
    ("observation_space", "action_space", "sentence"),
    [
        (
            VECTOR,
            Tuple([Discrete(2), Box(0, 3, shape=(2,), dtype="int64")]),
            "da3c cannot handle the action space Tuple(Discrete(2), Box(int64, [2], 0..3)): a Box of int64 is not"
            " supported; use Discrete or MultiDiscrete for whole numbers, or a Box of float32",
        ),
        (
            VECTOR,
            MultiBinary([30_000, 30_000]),
            "da3c cannot handle the observation space Box(float32, [4]): the network would have 58500009025"
            " parameters, outputs included; at most 50000000 are supported",
        ),
        (
            Discrete(10_001),
            Discrete(2),
            "da3c cannot handle the observation space Discrete(10001): observations in Discrete(10001) would need 10001"
            " inputs; at most 10000 are supported",
        ),
        (
            Box(0, 255, shape=(10_000, 10_000), dtype=np.uint8),
            Discrete(2),
            "da3c cannot handle the observation space Box(uint8, [10000, 10000], 0..255): the network would have"
            " 12759086131 parameters, outputs included; at most 50000000 are supported",
        ),
        (
            Box(0, 255, shape=(3, 64, 64), dtype=np.uint8),
            Discrete(2),
            "da3c cannot handle the observation space Box(uint8, [3, 64, 64], 0..255): it looks like an image of"
            " [channels, rows, columns], and images must be [rows, columns, channels]; transpose it to"
            " [64, 64, 3], for instance with gymnasium.wrappers.TransformObservation, or set"
            " algorithm.network.convolutions if its axes are already [rows, columns, channels]",
        ),
        (
            Box(0, 1, shape=(84, 84, 3)),
            Discrete(2),
            "da3c cannot handle the observation space Box(float32, [84, 84, 3], 0..1): it looks like an image, and"
            " convolutions support Boxes of uint8, [rows, columns] or [rows, columns, channels]; send such a Box, or"
            " set algorithm.network.flatten_images to true to use its 21168 numbers without convolutions",
        ),
        (
            Tuple([CAMERA, CAMERA, VECTOR]),
            Discrete(2),
            "da3c cannot handle the observation space Tuple(Box(uint8, [64, 64, 3], 0..255), Box(uint8, [64, 64, 3],"
            " 0..255), Box(float32, [4])): 2 of its parts are images, the first two Box(uint8, [64, 64, 3], 0..255) and"
            " Box(uint8, [64, 64, 3], 0..255), and convolutions support one; send them as the channels of one image,"
            " or set algorithm.network.flatten_images to true to use their 24576 numbers without convolutions",
        ),
        (
            Tuple([CAMERA, Box(0, 1, shape=(20, 20))]),
            Discrete(2),
            "da3c cannot handle the observation space Tuple(Box(uint8, [64, 64, 3], 0..255), Box(float32, [20, 20],"
            " 0..1)): its part Box(float32, [20, 20], 0..1) looks like an image, and convolutions support Boxes of"
            " uint8, [rows, columns] or [rows, columns, channels]; send such a Box, or set"
            " algorithm.network.flatten_images to true to use its 400 numbers without convolutions",
        ),
        (
            Dict({"camera": Box(0, 255, shape=(3, 64, 64), dtype=np.uint8), "speed": VECTOR}),
            Discrete(2),
            "da3c cannot handle the observation space Dict(camera: Box(uint8, [3, 64, 64], 0..255), speed:"
            " Box(float32, [4])): its part Box(uint8, [3, 64, 64], 0..255) looks like an image of [channels, rows,"
            " columns], and images must be [rows, columns, channels]; transpose it to [64, 64, 3], for instance"
            " with gymnasium.wrappers.TransformObservation, or set algorithm.network.convolutions if its axes are"
            " already [rows, columns, channels]",
        ),
    ],
    ids=[
        *("whole numbers", "many bits", "large", "large image", "channels first", "floats"),
        *("two images", "part of floats", "part with channels first"),
    ],
)
def test_refusal_names_the_space_and_the_reason(observation_space: Space, action_space: Space, sentence: str) -> None:
    assert refusal(observation_space, action_space) == sentence


FLAT, CONVOLUTIONS = {"flatten_images": True}, {"convolutions": [{"filters": 4, "kernel": 3, "stride": 1}]}


@pytest.mark.parametrize(
    ("space", "network", "handled"),
    [
        (Box(0, 1, shape=(3, 84, 84)), {}, False),
        (Box(0, 1, shape=(84, 84)), {}, False),
        (Box(0, 1, shape=(84, 84)), FLAT, True),
        (Box(0, 255, shape=(4, 84, 84, 3), dtype=np.uint8), {}, False),
        (Box(0, 1, shape=(84, 84), dtype=np.bool_), {}, False),
        (CAMERA_AND_SPEED, FLAT, True),
        (CAMERA_AND_SPEED, {"convolutions": []}, False),
        (Tuple([CAMERA, CAMERA]), FLAT, True),
        (Tuple([Box(0, 255, shape=(7, 7, 3), dtype=np.uint8), Discrete(4)]), {}, True),  # small images are flattened
        (Box(shape=(200, 15)), {}, True),
        (Box(0, 255, shape=(3, 64, 64), dtype=np.uint8), FLAT, False),
        (Box(0, 255, shape=(3, 64, 64), dtype=np.uint8), CONVOLUTIONS, True),
        (Box(0, 255, shape=(1, 84, 84), dtype=np.uint8), {}, False),
        (Box(0, 1, shape=(4, 10, 10), dtype=np.bool_), {}, False),
        (Box(0, 1, shape=(9, 10, 15), dtype=np.bool_), {}, True),
    ],
    ids=str,
)
def test_unsupported_shapes_of_images_are_refused(space: Space, network: dict[str, Any], handled: bool) -> None:
    assert (refusal(space, Discrete(3), network=network) is None) == handled


def test_too_small_channels_first_image_suggests_transposing() -> None:
    large = {"convolutions": [{"filters": 4, "kernel": 5, "stride": 1}]}
    sentence = refusal(Box(0, 255, shape=(3, 64, 64), dtype=np.uint8), Discrete(3), network=large) or ""
    assert "an image of [3, 64, 256] is too small for convolution 0" in sentence
    assert sentence.endswith("; transpose it to [64, 64, 3], or change algorithm.network.convolutions")
    sentence = refusal(Box(0, 255, shape=(4, 4), dtype=np.uint8), Discrete(3), network=large) or ""
    assert sentence.endswith("stride=1); change algorithm.network.convolutions")


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


def test_network_size_follows_the_space() -> None:
    # 681,027 is counted in tests/nn/test_networks.py.
    assert parameters(ATARI, 18, history_len=1).size == 681_027 - 8 * 8 * 3 * 16
    # Two trunks of 4*64 + 64 + 64*64 + 64; then 64*2 + 2 for the policy and 64 + 1 for the value.
    assert parameters(VECTOR, 2).size == 2 * 4_480 + 195
    assert parameters(VECTOR, 2, network={"separate": False}).size == 4_480 + 195
    assert parameters(VECTOR, 2, lstm=True).size == parameters(VECTOR, 2, lstm=True, network={"separate": False}).size


def image(*shape: int, dtype: Any = np.uint8) -> Space:
    return Box(0, np.iinfo(dtype).max if dtype != np.bool_ else 1, shape=shape, dtype=dtype)


@pytest.mark.parametrize(
    ("space", "convolutions", "features"),
    [
        (image(36, 50), [(8, 8, 4, 16), (4, 4, 16, 32)], 3 * 4 * 32),
        (image(35, 50), [(4, 4, 4, 16), (3, 3, 16, 32)], 14 * 22 * 32),
        (image(16, 16), [(4, 4, 4, 16), (3, 3, 16, 32)], 5 * 5 * 32),
        (image(15, 16), [(3, 3, 4, 16)], 13 * 14 * 16),
        (image(10, 10, 3), [(3, 3, 12, 16)], 8 * 8 * 16),
        (image(10, 10, 4, dtype=np.bool_), [(3, 3, 4, 16)], 8 * 8 * 16),  # binary planes are not stacked over time
        (image(3, 3), [(3, 3, 4, 16)], 16),
        (image(2, 9), [], 2 * 9 * 4),
    ],
    ids=str,
)
def test_convolutions_follow_the_size_of_the_image(
    space: Space, convolutions: list[tuple[int, ...]], features: int
) -> None:
    spec = actor_critic_network(DA3C.configure({"path": "da3c"}), space, Categorical(2))
    shapes = spec.layout().shapes
    kernels = [shape for name, shape in shapes.items() if name.startswith("conv") and name.endswith("kernel")]
    assert kernels == convolutions
    assert shapes["dense0/kernel"][0] == features
    assert refusal(space, Discrete(2)) is None


SMALL_CAMERA = Dict({"camera": image(16, 16, 3), "speed": Box(shape=(2,)), "turn": Discrete(3)})


@pytest.mark.parametrize(
    ("space", "keys", "shapes"),
    [
        # 16 x 16: convolutions as for the image alone give 5 x 5 x 32. The five other numbers add 64 features.
        (SMALL_CAMERA, {}, {"conv0/kernel": (4, 4, 12, 16), "side/kernel": (5, 64), "dense0/kernel": (864, 256)}),
        (SMALL_CAMERA, {"history_len": 1}, {"conv0/kernel": (4, 4, 3, 16), "dense0/kernel": (864, 256)}),
        (Tuple([image(16, 16)]), {}, {"conv0/kernel": (4, 4, 4, 16), "dense0/kernel": (800, 256)}),
        (Tuple([image(16, 16, 2, dtype=np.bool_), VECTOR]), {}, {"conv0/kernel": (4, 4, 2, 16)}),
        # Without convolutions, pixels are like other numbers: no history, and the layers of vectors.
        (SMALL_CAMERA, {"network": FLAT}, {"policy/dense0/kernel": (16 * 16 * 3 + 5, 64)}),
        (Tuple([image(7, 7, 3), Discrete(4)]), {}, {"policy/dense0/kernel": (7 * 7 * 3 + 4, 64)}),
        # If convolutions are configured, small images have them.
        (
            Tuple([image(7, 7, 3), Discrete(4)]),
            {"network": CONVOLUTIONS},
            {"conv0/kernel": (3, 3, 12, 4), "side/kernel": (4, 64)},
        ),
        (Tuple([image(7, 7), image(7, 7)]), {"network": CONVOLUTIONS}, {"policy/dense0/kernel": (98, 64)}),
    ],
    ids=["beside", "one frame", "nothing beside", "planes", "flat", "small", "asked for", "two small"],
)
def test_image_among_several_parts_has_convolutions(
    space: Space, keys: dict[str, Any], shapes: dict[str, tuple[int, ...]]
) -> None:
    found = actor_critic_network(DA3C.configure({"path": "da3c"} | keys), space, Categorical(2)).layout().shapes
    assert {name: found.get(name) for name in shapes} == shapes
    assert ("side/kernel" in found) == ("conv0/kernel" in found and len(list(space.elements())) > 1)
    assert refusal(space, Discrete(2), **keys) is None


def test_initial_policy_is_almost_uniform() -> None:
    flat = parameters(VECTOR, 3, network={"dense": []})
    assert np.abs(flat[:12]).max() < 0.02
    assert np.linalg.norm(flat[15:19]) == pytest.approx(1.0, rel=1e-5), "the value's kernel"
