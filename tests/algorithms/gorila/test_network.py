"""Networks of gorila and apex: their parameters, counted by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithms._value_based.model import ActionValueConfig, action_values, value_network
from relaax.algorithm_base import Box, Discrete, load_algorithm
from relaax.configuration import find_configuration, load_configuration
from relaax.hosting.loader import load_config

IMAGE, ACTIONS = Box(0, 255, (84, 84), np.uint8), Discrete(6)
NATURE = (4 * 8 * 8 * 32 + 32) + (32 * 4 * 4 * 64 + 64) + (64 * 3 * 3 * 64 + 64)
FIRST = (4 * 8 * 8 * 16 + 16) + (16 * 4 * 4 * 32 + 32)


def parameters(config: ActionValueConfig, space: Box = IMAGE) -> int:
    return value_network(config, space, action_values(config, ACTIONS)).layout().size


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("gorila", (7 * 7 * 64 * 512 + 512) + (512 * 6 + 6)),
        ("apex", 2 * (7 * 7 * 64 * 512 + 512) + (512 * 1 + 1) + (512 * 6 + 6)),
    ],
)
def test_images_have_the_network_of_mnih_et_al_2015(name: str, heads: int) -> None:
    assert parameters(load_algorithm(name, Path()).configure({"path": name})) == NATURE + heads


@pytest.mark.parametrize(
    "space", [Box(False, True, (10, 10, 4), np.bool_), Box(0, 255, (20, 30), np.uint8), Box(shape=(8,))]
)
def test_smaller_images_and_vectors_have_the_common_network(space: Box) -> None:
    sizes = {
        parameters(load_algorithm(name, Path()).configure({"path": name}), space) for name in ("gorila", "async_q")
    }
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("gorila_ale_pong", (9 * 9 * 32 * 256 + 256) + (256 * 6 + 6)),
        ("apex_ale", 2 * (9 * 9 * 32 * 256 + 256) + (256 * 1 + 1) + (256 * 6 + 6)),
    ],
)
def test_bundled_configurations_have_network_of_mnih_2013(name: str, heads: int) -> None:
    config: Any = load_configuration(find_configuration(name), [], {}, load_config).algorithm_config
    assert parameters(config) == FIRST + heads


def test_one_rmsprop_key_of_apex_keeps_the_other_defaults() -> None:
    config = load_algorithm("apex", Path()).configure({"path": "apex", "RMSProp": {"gradient_norm_clipping": 10}})
    section = config.rms_prop
    assert (section.decay, section.epsilon, section.centered, section.gradient_norm_clipping) == (
        0.95,
        1.5e-7,
        True,
        10,
    )
