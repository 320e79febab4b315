"""Numbers drawn for the parameters of environments."""

from __future__ import annotations

import numpy as np
import pytest

from relaax.lessons.values import Draw, Edition, ValueRange, draw

VALUES = {"gravity": ValueRange(1, 9), "size": ValueRange(choices=(1, 2, 4)), "mass": ValueRange.constant(0.5)}


def test_constants_ranges_and_choices() -> None:
    drawn = np.array([draw(VALUES, Draw(1, 0, 3, number)) for number in range(2_000)])
    gravity, size, mass = drawn.T
    assert (gravity.min() >= 1, gravity.max() <= 9, set(mass)) == (True, True, {0.5})
    assert gravity.mean() == pytest.approx(5, abs=0.2)
    counts = [np.count_nonzero(size == choice) for choice in (1, 2, 4)]
    assert sum(counts) == 2_000
    assert min(counts) > 560


def test_numbers_depend_on_seed_connection_actor_and_episode() -> None:
    of = Draw(1, 20, 3, 4)
    np.testing.assert_array_equal(draw(VALUES, of), draw(dict(VALUES), of))
    others = [Draw(2, 20, 3, 4), Draw(1, 21, 3, 4), Draw(1, 20, 4, 3), Draw(1, 20, 3, 5)]
    assert len({draw(VALUES, each)[0] for each in [of, *others]}) == 5


def test_other_values_of_a_parameter_leave_the_others() -> None:
    of = Draw(1, 20, 3, 4)
    changed = VALUES | {"gravity": ValueRange.constant(2)}
    assert draw(changed, of)[1] == draw(VALUES, of)[1]


@pytest.mark.parametrize(
    ("values", "share", "value"),
    [
        (ValueRange(2, 4), 0.0, 2),
        (ValueRange(2, 4), 0.25, 2.5),
        (ValueRange.constant(-3), 0.9, -3),
        (ValueRange(choices=(5, 6)), 0.49, 5),
        (ValueRange(choices=(5, 6)), 0.5, 6),
        (ValueRange(choices=(5, 6)), 1.0, 6),
    ],
)
def test_value_at_a_share(values: ValueRange, share: float, value: float) -> None:
    assert values.at(share) == value


def test_text_for_people() -> None:
    assert str(Edition(1, 0, VALUES)) == "gravity 1 to 9, size 1 | 2 | 4, mass 0.5"
