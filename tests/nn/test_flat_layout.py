from __future__ import annotations

import numpy as np
import pytest

from relaax.nn.specification import FlatLayout

LAYOUT = FlatLayout({"a": (2, 3), "b": (), "c": (2,)})


def test_arrays_are_concatenated_in_order() -> None:
    assert LAYOUT.size == 9  # 6 + 1 + 2
    assert LAYOUT.sizes == [6, 1, 2]
    views = LAYOUT.views(np.arange(9, dtype=np.float32))
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert views["b"].tolist() == 6
    assert views["c"].tolist() == [7, 8]


def test_writing_to_views_changes_the_vector() -> None:
    vector = np.zeros(9, np.float32)
    LAYOUT.views(vector)["c"][...] = [5, 6]
    assert vector.tolist() == [0, 0, 0, 0, 0, 0, 0, 5, 6]


def test_join_is_the_reverse_of_views() -> None:
    vector = np.arange(9, dtype=np.float32)
    joined = LAYOUT.join(LAYOUT.views(vector))
    np.testing.assert_array_equal(joined, vector)
    assert joined.dtype == np.float32
    assert not np.shares_memory(joined, vector)


@pytest.mark.parametrize("shape", [(8,), (10,), (9, 1), (3, 3)])
def test_vector_of_wrong_length_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a vector of shape \(9,\) is needed, not \("):
        LAYOUT.views(np.zeros(shape, np.float32))


def test_join_without_an_array_is_refused() -> None:
    with pytest.raises(KeyError, match="c"):
        LAYOUT.join({"a": np.zeros((2, 3)), "b": np.zeros(())})
