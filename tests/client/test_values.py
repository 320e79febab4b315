import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence as equal
from gymnasium.vector.utils import batch_space

from relaax import rlx
from relaax.client.connection.values import UnsupportedSpace, fill_rows, single_leaves, values_of

SPACES = {
    "box": (spaces.Box(-2, 3, (2, 3), np.float64), rlx.Box(-2, 3, (2, 3), np.float64)),
    "bounds": (
        spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 5], np.float32)),
        rlx.Box([-1, -np.inf], [1, 5]),
    ),
    "scalar": (spaces.Box(0, 1, ()), rlx.Box(0, 1, ())),
    "image": (spaces.Box(0, 255, (84, 84), np.uint8), rlx.Box(0, 255, (84, 84), np.uint8)),
    "discrete": (spaces.Discrete(3, start=-1), rlx.Discrete(3, -1)),
    "small": (spaces.Discrete(3, dtype=np.int32), rlx.Discrete(3)),
    "multi_discrete": (
        spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32, start=[[1, 0], [-2, 7]]),
        rlx.MultiDiscrete([2, 3, 4, 5]),
    ),
    "multi_binary": (spaces.MultiBinary([2, 3]), rlx.MultiBinary((2, 3))),
    "bits": (spaces.MultiBinary(4), rlx.MultiBinary(4)),
    "tuple": (
        spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2,))]),
        rlx.Tuple([rlx.Discrete(2), rlx.Box(0, 1, (2,))]),
    ),
    "dict": (
        spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.MultiBinary(2)})}),
        rlx.Dict({"z": rlx.Discrete(2), "a": rlx.Dict({"b": rlx.MultiBinary(2)})}),
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_gymnasium_space_becomes_the_rlx_space(name):
    space, expected = SPACES[name]
    assert values_of(space).space == expected


@pytest.mark.parametrize("name", [name for name in SPACES if name != "multi_discrete"])
def test_rlx_space_is_kept(name):
    assert values_of(SPACES[name][1]).space == SPACES[name][1]


@pytest.mark.parametrize("name", SPACES)
def test_single_value_survives_the_conversion_to_leaves(name):
    space, _ = SPACES[name]
    values = values_of(space)
    space.seed(7)
    for _ in range(5):
        value = space.sample()
        leaves = single_leaves(values, value)
        for leaf, element in zip(leaves, values.space.elements(), strict=True):
            assert leaf.shape == (1, *element.shape)
            assert leaf.dtype == element.dtype
        back = values.from_leaves(iter(leaves), True)
        assert space.contains(back)
        if isinstance(space, spaces.Discrete):
            assert type(back) is int
            assert back == value
        elif name not in ("tuple", "dict"):  # a nested Discrete becomes int, where gymnasium samples int64
            assert equal(back, value)


@pytest.mark.parametrize("name", SPACES)
def test_batch_survives_the_conversion_to_leaves(name):
    space, _ = SPACES[name]
    batched = batch_space(space, 3)
    values = values_of(space)
    batched.seed(7)
    value = batched.sample()
    leaves = values.to_leaves(value, 1)
    for leaf, element in zip(leaves, values.space.elements(), strict=True):
        assert leaf.shape == (3, *element.shape)
    back = values.from_leaves(iter(leaves), False)
    assert batched.contains(back)
    assert equal(back, value)


def test_converted_values_are_writable():
    values = values_of(rlx.Box(shape=(2,)))
    leaf = np.zeros((1, 2), np.float32)
    leaf.setflags(write=False)
    values.from_leaves(iter([leaf]), True)[0] = 1.0
    values.from_leaves(iter([leaf]), False)[0, 0] = 1.0


@pytest.mark.parametrize(
    ("space", "value", "axes", "reason"),
    [
        (rlx.Box(shape=(2,)), [1.0, 2.0, 3.0], 0, "has shape (3,), the space is (2,)"),
        (rlx.Box(shape=(2,)), [[1.0, 2.0]], 0, "has shape (1, 2), the space is (2,)"),
        (rlx.Box(shape=(2,)), [1.0, 2.0], 1, "has shape (2,), without the leading axis of the environments"),
        (rlx.Box(shape=(2,)), np.array([None, 1.0]), 0, "holds None; every element must be a number"),
        (rlx.Discrete(3), 1.5, 0, "is float64, the space is int64"),
        (rlx.Tuple([rlx.Discrete(3)]), 1, 0, "is of type int, the space is a tuple of 1 values"),
        (rlx.Tuple([rlx.Discrete(3)]), (1, 2), 0, "has length 2, the space is a tuple of 1 values"),
        (rlx.Dict({"a": rlx.Discrete(3)}), {"b": 1}, 0, "['a'] is missing"),
        (rlx.Dict({"a": rlx.Discrete(3)}), 1, 0, "is of type int, the space is a dict with the keys a"),
        (spaces.MultiDiscrete([[2, 3]], start=[[1, 0]]), [1, 0], 0, "has shape (2,), the space is (1, 2)"),
    ],
)
def test_value_outside_its_space_is_refused(space, value, axes, reason):
    with pytest.raises(ValueError, match=r"^observation") as refused:
        values_of(space).to_leaves(value, axes)
    assert str(refused.value).removeprefix("observation").strip() == reason


def test_unsupported_space_is_named():
    with pytest.raises(UnsupportedSpace, match=r"Text.*Discrete"):
        values_of(spaces.Tuple([spaces.Text(3)]))


def test_space_with_too_many_leaves_is_refused():
    with pytest.raises(UnsupportedSpace, match="^the Dict has more than 256 leaves$"):
        values_of(spaces.Dict({str(number): spaces.Discrete(2) for number in range(257)}))


def test_only_given_rows_are_filled():
    values = values_of(spaces.Dict({"a": spaces.Discrete(9), "b": spaces.Box(0, 9, (2,))}))
    current = values.to_leaves({"a": [1, 2, 3], "b": np.ones((3, 2), np.float32)}, 1)
    filled = fill_rows(values, current, [None, {"a": 7, "b": [5.0, 6.0]}, None])
    assert filled[0].tolist() == [1, 7, 3]
    assert filled[1].tolist() == [[1, 1], [5, 6], [1, 1]]
    assert current[0].tolist() == [1, 2, 3]
