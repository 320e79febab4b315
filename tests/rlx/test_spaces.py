from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given

from relaax.rlx import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    rlx_pb2,
    space_from_dict,
    space_to_dict,
)
from relaax.rlx.value_mismatch import ValueMismatch
from relaax.rlx.wire.space_encoding import MAX_DEPTH, MAX_LEAVES
from support.rlx_pair import Pair
from support.rlx_strategies import leaves, spaces

DICT = Dict({"camera": Box(shape=(2,)), "arm": Tuple([Discrete(2), Discrete(2)])})


@given(spaces)
def test_dicts_and_pickles_round_trip(space: Space) -> None:
    again = space_from_dict(json.loads(json.dumps(space_to_dict(space))))
    assert again == space
    assert hash(again) == hash(space)
    assert space_to_dict(again) == space_to_dict(space)
    assert pickle.loads(pickle.dumps(space)) == space


@given(spaces.flatmap(lambda s: leaves(s, 2).map(lambda v: (s, v))))
def test_unflatten_is_the_reverse_of_flatten(case: tuple[Space, list[np.ndarray]]) -> None:
    space, values = case
    again = space.flatten(space.unflatten(values))
    assert [a.tobytes() for a in again] == [v.tobytes() for v in values]
    assert [a.dtype for a in again] == [e.dtype for e in space.elements()]
    assert len(list(space.paths())) == len(values)
    with pytest.raises(ValueError, match="too few"):
        space.unflatten(values[:-1])
    with pytest.raises(ValueError, match="too many"):
        space.unflatten([*values, values[0]])


def test_dict_leaves_are_sorted_by_code_point_of_keys() -> None:
    space = Dict({"b": Discrete(2), "Z": Discrete(3), "ä": Discrete(4), "a": Tuple([Discrete(5), Discrete(6)])})
    assert [e.n for e in space.elements()] == [3, 5, 6, 2, 4]  # type: ignore[attr-defined]
    assert list(space.paths()) == ["['Z']", "['a'][0]", "['a'][1]", "['b']", "['ä']"]
    assert space == Dict(dict(reversed(space.spaces.items())))


def test_keys_above_u_ffff_are_sorted_by_code_point() -> None:
    """Languages that compare UTF-16 put U+10000, which begins with 0xD800, before U+E000 and U+FFFF."""
    space = Dict({"\U0001f600": Discrete(2), "\uffff": Discrete(3), "\U00010000": Discrete(4), "\ue000": Discrete(5)})
    assert list(space.spaces) == ["\ue000", "\uffff", "\U00010000", "\U0001f600"]
    assert [element.n for element in space.elements() if isinstance(element, Discrete)] == [5, 3, 4, 2]


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (Box(shape=(4,)), "Box(float32, [4])"),
        (Box(0, 255, (84, 84), np.uint8), "Box(uint8, [84, 84], 0..255)"),
        (Box(shape=(2,), dtype=np.uint8), "Box(uint8, [2], 0..255)"),
        (Box(-0.5, 2, (1,)), "Box(float32, [1], -0.5..2)"),
        (Box([-1, -2], [1, 2]), "Box(float32, [2])"),
        (Discrete(18), "Discrete(18)"),
        (Discrete(2, start=-1), "Discrete(2, start=-1)"),
        (MultiDiscrete([2, 3]), "MultiDiscrete([2, 3])"),
        (MultiBinary(3), "MultiBinary([3])"),
        (Tuple([Discrete(2), MultiBinary((1, 2))]), "Tuple(Discrete(2), MultiBinary([1, 2]))"),
        (Dict({"b": Discrete(2), "a": Discrete(3)}), "Dict(a: Discrete(3), b: Discrete(2))"),
    ],
)
def test_space_is_formatted_as_short_text(space: Space, text: str) -> None:
    assert str(space) == repr(space) == text


def test_bounds_are_rounded_to_the_dtype() -> None:
    box = Box(np.float64(0.1), 1e300, (2,))
    assert box.low.tolist() == [float(np.float32(0.1))] * 2
    assert box.high.tolist() == [np.inf] * 2
    assert Box(0.5, 3.7, (), np.int8).low == 1
    assert Box(0.5, 3.7, (), np.int8).high == 3
    assert Box(-0.0, 1, (1,)) == Box(0.0, 1, (1,)) == Box([0.0], [1.0])
    assert Box(0, 1, (1,)) != Box(0, 1, (1,), np.float64)
    assert Box(0, 1, (1,)) != Box(0, 2, (1,))


def test_bounds_that_broadcast_have_the_shape_of_the_space() -> None:
    box = Box(np.arange(3.0), 5.0, (5, 3))
    assert box == Box(np.tile(np.arange(3.0), (5, 1)), 5.0)
    assert space_from_dict(space_to_dict(box)) == box


def test_huge_box_with_scalar_bounds_uses_little_memory() -> None:
    box = Box(0, 255, (2**15, 2**15), np.uint8)
    assert box.low.shape == (2**15, 2**15)
    assert box.low.base is not None
    assert len(json.dumps(space_to_dict(box))) < 200


def test_bounds_are_read_only_copies() -> None:
    low = np.array([0.0, -1.0])
    box = Box(low, 2, dtype=np.float64)
    low[0] = 9
    assert box.low.tolist() == [0, -1]
    with pytest.raises(ValueError, match="read-only"):
        box.low[0] = 9


@pytest.mark.parametrize(
    ("value", "space", "dtype"),
    [
        (1, Discrete(2), np.int64),
        (np.uint8(1), Discrete(2), np.int64),
        ([0.5, 1.5], Box(shape=(2,)), np.float32),
        ([1, 2], Box(shape=(2,), dtype=np.uint8), np.uint8),
        ([True, False], MultiBinary(2), np.int8),
        (np.zeros((3, 2), ">f4"), Box(shape=(2,)), np.float32),
    ],
)
def test_flatten_converts_dtypes_without_loss(value: object, space: Space, dtype: type) -> None:
    (leaf,) = space.flatten(value)
    assert leaf.dtype == dtype
    assert leaf.tolist() == np.asarray(value).tolist()


@pytest.mark.parametrize(
    ("value", "space", "sentence"),
    [
        (0.5, Discrete(2), "observation is float64, the space is int64"),
        ([256, 0], Box(shape=(2,), dtype=np.uint8), "observation holds 256, which is outside the range of uint8"),
        ([-1, 0], Box(shape=(2,), dtype=np.uint8), "observation holds -1, which is outside the range of uint8"),
        ([1.0, 2.0, 3.0], Box(shape=(2,)), "observation has shape (3,), the space is (2,)"),
        (1.0, Box(shape=(2,)), "observation has shape (), the space is (2,)"),
        ([[1.0], [1.0, 2.0]], Box(shape=(2,)), "observation is a list of values of different shapes, not an array"),
        ((np.zeros(2), {}), Box(shape=(2,)), "observation is a tuple of values of different shapes, not an array"),
        ("left", Discrete(2), "observation is of type str, not an array of numbers"),
        ([1.0, None], Box(shape=(2,)), "observation holds None; every element must be a number"),
        (1, Tuple([Discrete(2), Discrete(2)]), "observation is of type int, the space is a tuple of 2 values"),
        ((1,), Tuple([Discrete(2), Discrete(2)]), "observation has length 1, the space is a tuple of 2 values"),
        (None, DICT, "observation is None, the space is a dict with the keys arm, camera"),
        ({"arm": (1, 0)}, DICT, "observation['camera'] is missing"),
        (
            {"arm": (1, 0), "camera": [0, 0], "x": 1},
            DICT,
            "observation['x'] is not in the space, which has arm, camera",
        ),
        ({"arm": (1, 0), "camera": None}, DICT, "observation['camera'] is None, not an array of numbers"),
        ({"arm": (1, 0.5), "camera": [0, 0]}, DICT, "observation['arm'][1] is float64, the space is int64"),
    ],
)
def test_flatten_error_names_the_invalid_part(value: object, space: Space, sentence: str) -> None:
    with pytest.raises(ValueMismatch) as mismatch:
        space.flatten(value)
    assert str(mismatch.value) == sentence


@pytest.mark.parametrize(
    "make",
    [
        lambda: Box(np.nan, 1, (1,)),
        lambda: Box(2, 1, (1,)),
        lambda: Box(np.inf, np.inf, (1,)),
        lambda: Box(shape=(0,)),
        lambda: Box(shape=(2**20, 2**20)),
        lambda: Box([0, 0, 0], 1, (2,)),
        lambda: Box(dtype=np.complex64, shape=(1,)),
        lambda: Box(0.2, 0.8, (1,), np.int8),
        lambda: Discrete(0),
        lambda: Discrete(2, start=2**63 - 1),
        lambda: MultiDiscrete([]),
        lambda: MultiDiscrete([2, 0]),
        lambda: MultiBinary(0),
        lambda: Tuple([]),
        lambda: Dict({}),
        lambda: Dict({1: Discrete(2)}),  # type: ignore[dict-item]
    ],
)
def test_invalid_space_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()  # type: ignore[operator]


def test_space_with_maximal_leaves_is_accepted() -> None:
    wide = Tuple([Discrete(2)] * MAX_LEAVES)
    assert space_from_dict(space_to_dict(wide)) == wide
    pair = Pair()
    assert pair.play(observation_space=wide).observation_space == wide
    assert len(pair.step().observation) == MAX_LEAVES


def test_discrete_space_includes_the_largest_int64() -> None:
    top = Discrete(2, start=2**63 - 2)
    assert space_from_dict(space_to_dict(top)) == top


def test_space_with_maximal_depth_is_accepted() -> None:
    deep: Space = Discrete(2)
    for _ in range(MAX_DEPTH - 1):  # the elementary space has depth 1
        deep = Tuple([deep])
    assert space_from_dict(space_to_dict(deep)) == deep
    assert Pair("json").open(observation_space=deep).observation_space == deep


def test_space_above_the_limits_is_not_described() -> None:
    deep: Space = Discrete(2)
    for _ in range(MAX_DEPTH):
        deep = Tuple([deep])
    for space in (deep, Tuple([Discrete(2)] * 257), Box(shape=(1,) * 9)):
        with pytest.raises(ValueError, match=r"more than|cannot"):
            space_to_dict(space)


@pytest.mark.parametrize(
    "description",
    [
        {},
        {"disc": {"n": "2"}},
        {"discrete": {"n": "0"}},
        {"discrete": {"n": "x"}},
        {"discrete": 3},
        {"box": {"dtype": "DTYPE_FLOAT33", "shape": [2]}},
        {"tuple": {"spaces": [{}]}},
    ],
)
def test_invalid_space_description_is_refused(description: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"space"):
        space_from_dict(description)


def test_missing_bounds_on_the_wire_are_infinite() -> None:
    space = space_from_dict({"box": {"dtype": "DTYPE_FLOAT64", "shape": [2], "low": [-1, "-Infinity"]}})
    assert space == Box([-1, -np.inf], np.inf, dtype=np.float64)
    assert rlx_pb2.Space().WhichOneof("space") is None
