"""Random orthogonal matrices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from relaax.nn import initialization as module
from relaax.nn.initialization import WIDE, orthogonal, reflections


@pytest.mark.parametrize("shape", [(5, 5), (9, 4), (4, 9), (WIDE + 3, WIDE), (WIDE, WIDE + 3), (WIDE + 1, WIDE + 1)])
def test_shorter_side_is_orthonormal(shape: tuple[int, int]) -> None:
    made = orthogonal(np.random.default_rng(1), *shape)
    assert made.shape == shape
    small = made.T @ made if shape[0] >= shape[1] else made @ made.T
    np.testing.assert_allclose(small, np.eye(len(small)), atol=2e-5)


@pytest.mark.parametrize(("rows", "columns"), [(40, 23), (32, 32), (9, 8), (1, 1)])
def test_blocks_of_reflections_equal_single_reflections(
    rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BLOCK", 8)
    drawn: list[npt.NDArray[np.float32]] = []

    class RecordingGenerator:
        """A random generator that records its results."""

        def __init__(self) -> None:
            self._rng = np.random.default_rng(3)

        def standard_normal(self, shape: tuple[int, int], dtype: type[np.float32]) -> npt.NDArray[np.float32]:
            numbers: npt.NDArray[np.float32] = self._rng.standard_normal(shape, dtype)
            drawn.append(numbers)
            return numbers

    made = reflections(RecordingGenerator(), rows, columns)  # type: ignore[arg-type]
    one_by_one = np.eye(rows)
    signs = []
    for block, start in zip(reversed(drawn), range(0, columns, 8), strict=True):
        for index in range(block.shape[1]):
            at = start + index
            x = np.zeros(rows)
            x[at:] = block[index:, index]
            sign = 1.0 if x[at] >= 0 else -1.0
            x[at] += sign * np.linalg.norm(x)
            one_by_one = one_by_one @ (np.eye(rows) - 2 * np.outer(x, x) / (x @ x))
            signs.append(-sign)
    np.testing.assert_allclose(made, one_by_one[:, :columns] * signs, atol=1e-5)


def test_reflections_follow_haar_measure() -> None:
    rng = np.random.default_rng(5)
    drawn = np.array([reflections(rng, 3, 3) for _ in range(2000)])
    traces = np.trace(drawn, axis1=1, axis2=2)
    # Haar measure of O(3): traces have mean 0 and mean square 1, elements are alike, both determinants occur equally.
    assert traces.mean() == pytest.approx(0.0, abs=0.08)
    assert (traces**2).mean() == pytest.approx(1.0, abs=0.15)
    np.testing.assert_allclose(drawn.mean(axis=0), 0.0, atol=0.05)
    np.testing.assert_allclose((drawn**2).mean(axis=0), 1 / 3, atol=0.03)
    assert (np.linalg.det(drawn) > 0).mean() == pytest.approx(0.5, abs=0.05)
