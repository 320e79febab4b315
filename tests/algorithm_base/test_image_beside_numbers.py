"""Normalisation of an observation that has an image and other numbers."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.algorithm_base import Box, Dict, Discrete
from relaax.algorithm_base.network import IMAGE, OBSERVATION, normalized_statistics
from relaax.algorithm_base.normalization import Normalization
from relaax.algorithm_base.testing import FakeParameters
from relaax.parameters.interfaces import Pulled
from relaax.parameters.moments import Moments

SPACE = Dict({"camera": Box(0, 255, (1, 2), np.uint8), "speed": Box(shape=(2,)), "turn": Discrete(3)})
PIXELS = 4
INPUTS = np.array([[0.2, 0.4, 0.6, 0.8, 5, 100, 0, 1, 0]], np.float32)  # two frames of two pixels, then five numbers
MOMENTS = {
    OBSERVATION: Moments(10, np.array([1.0, 0, 0, 0, 0]), np.array([40.0, 10, 0, 0, 0])),  # deviations of 2 and 1
    IMAGE: Moments(30_000, np.array([0.1, 0.5]), np.zeros(2)),
}


def normalization(*names: str) -> Normalization:
    sizes = {OBSERVATION: 5, IMAGE: 2}
    statistics = {name: sizes[name] for name in names}
    made = Normalization(statistics, 0.99, 1, FakeParameters(np.zeros(1), statistics=statistics), PIXELS)
    made.set_statistics(Pulled(np.zeros(1, np.float32), 0, 0, MOMENTS))
    return made


def test_statistics_cover_the_numbers_and_one_frame() -> None:
    assert normalized_statistics(SPACE, True, None, True, image=0) == {IMAGE: 2, OBSERVATION: 5}
    assert normalized_statistics(SPACE, True, None, True) == {OBSERVATION: 7}
    assert normalized_statistics(Dict({"camera": Box(0, 255, (1, 2), np.uint8)}), True, None, image=0) == {}


@pytest.mark.parametrize(
    ("names", "pixels", "numbers"),
    [
        ((), [0.2, 0.4, 0.6, 0.8], [5, 100, 0, 1, 0]),
        ((OBSERVATION,), [0.2, 0.4, 0.6, 0.8], [2, 10, 0, 1, 0]),
        ((IMAGE,), [0.1, 0.3, 0.1, 0.3], [5, 100, 0, 1, 0]),
        ((OBSERVATION, IMAGE), [0.1, 0.3, 0.1, 0.3], [2, 10, 0, 1, 0]),
    ],
    ids=["neither", "numbers", "image", "both"],
)
def test_image_and_numbers_have_separate_normalisation(
    names: tuple[str, ...], pixels: list[float], numbers: list[float]
) -> None:
    made = normalization(*names)
    found = made.observations(INPUTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[*pixels, *numbers]], rtol=1e-6)
    mean, std = made.mean_and_std((9,))
    assert (mean is None) == (not names)
    if mean is not None and std is not None:
        np.testing.assert_allclose(np.clip((INPUTS - mean) / std, -made.limit, made.limit), found, rtol=1e-6)
