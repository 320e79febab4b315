"""Mixed actions: leaves within every action space, entropy weights of parts, and unchanged networks of single kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, load_algorithm
from relaax.algorithm_base.acting.actions import ActionMap, actions_refusal
from relaax.algorithm_base.testing import RandomEnvironments, live, make_agent
from relaax.hosting.fingerprint import changed_keys
from relaax.nn.distributions import Composite
from relaax.rlx.leaf_checks import LeavesCheck
from support import rlx_strategies

ALGORITHMS = {name: load_algorithm(name, Path()) for name in ("da3c", "da3c_cont")}
DA3C = ALGORITHMS["da3c"]
VECTOR = Box(-1, 1, shape=(4,))
DEEP = Dict(
    {
        "move": Box([-1, 0], [1, 10]),
        "arms": Tuple(
            [
                Discrete(3, start=5),
                Dict({"grip": MultiBinary([2, 2]), "bend": Box(-np.inf, np.inf, (1, 2), "float64")}),
                MultiDiscrete([2, 4]),
            ]
        ),
    }
)
N = 200
FLOATS = [np.dtype(name) for name in ("float16", "float32", "float64")]


def outputs_of(map_: ActionMap, rows: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {head: (scale * rng.normal(size=(rows, n))).astype(np.float32) for head, n in map_.policy.heads.items()}


def test_leaves_have_the_order_dtypes_and_values_of_the_space() -> None:
    map_ = ActionMap(DEEP)
    assert list(DEEP.paths()) == [
        "['arms'][0]", "['arms'][1]['bend']", "['arms'][1]['grip']", "['arms'][2]", "['move']"
    ]  # fmt: skip
    #                arm  bend       grip        choices  move
    actions = np.array([[2, 0.5, -7.0, 1, 0, 0, 1, 1, 3, 0.5, -0.5]])
    leaves = map_(actions)
    assert [(leaf.dtype, leaf.shape) for leaf in leaves] == [
        (element.dtype, (1, *element.shape)) for element in DEEP.elements()
    ]
    assert DEEP.unflatten([leaf[0] for leaf in leaves])["arms"][0] == 7
    assert [leaf[0].tolist() for leaf in leaves] == [7, [[0.5, -7.0]], [[1, 0], [0, 1]], [1, 3], [0.5, 2.5]]


def test_every_part_is_drawn_from_its_own_columns() -> None:
    map_ = ActionMap(Tuple([Discrete(4), MultiDiscrete([3, 5]), MultiBinary(2), Box(-9, 9, (1,))]))
    outputs = {head: np.zeros((1, width), np.float32) for head, width in map_.policy.heads.items()}
    outputs["policy.0"][0, 3] = outputs["policy.1"][0, 1] = outputs["policy.1"][0, 3 + 4] = outputs["policy.2"][
        0, 1
    ] = 9
    outputs["mean.3"][0, 0] = 0.5
    leaves = map_(map_.policy.mode(outputs))
    assert [leaf[0].tolist() for leaf in leaves] == [3, [1, 4], [0, 1], [4.5]]


elementary: st.SearchStrategy[Space] = st.one_of(
    st.builds(Discrete, st.integers(1, 9), st.integers(-(2**62), 2**62)),
    st.builds(MultiDiscrete, st.lists(st.integers(1, 5), min_size=1, max_size=4)),
    st.builds(MultiBinary, rlx_strategies.shapes),
    rlx_strategies.boxes(st.sampled_from(FLOATS)),
)
action_spaces: st.SearchStrategy[Space] = st.recursive(
    elementary,
    lambda parts: st.one_of(
        st.builds(Tuple, st.lists(parts, min_size=1, max_size=3)),
        st.builds(Dict, st.dictionaries(st.text(max_size=5), parts, min_size=1, max_size=3)),
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(action_spaces)
def test_all_actions_are_in_the_space(space: Space) -> None:
    assert actions_refusal(space, {}) is None
    map_, check = ActionMap(space), LeavesCheck(space, N, bounded=True)
    for scale in (1.0, 100.0):
        outputs = outputs_of(map_, N, scale)
        for actions in (map_.policy.sample(outputs, np.random.default_rng(0)), map_.policy.mode(outputs)):
            check.check("action", map_(actions))


def test_bounds_are_those_that_users_of_gymnasium_expect() -> None:
    """A Box of two bounds is spanned by u from -1 to 1. Other elements begin at the allowed number nearest to 0."""
    u = np.array([[-1.0], [0.0], [0.25], [9.0]])
    for low, high, wanted in (
        (0, np.inf, [0.0, 0.0, 0.25, 9.0]),
        (-np.inf, 3, [-1.0, 0.0, 0.25, 3.0]),
        (-np.inf, -3, [-4.0, -3.0, -3.0, -3.0]),
        (5, 10, [5.0, 7.5, 8.125, 10.0]),
        (-np.inf, np.inf, [-1.0, 0.0, 0.25, 9.0]),
    ):
        (leaf,) = ActionMap(Box(low, high, (1,)))(u)
        assert leaf[:, 0].tolist() == wanted, (low, high)
    (leaf,) = ActionMap(Box([0, -1], [10, np.inf]))(np.repeat(u, 2, axis=1))
    assert leaf.tolist() == [[0.0, -1.0], [5.0, 0.0], [6.25, 0.25], [10.0, 9.0]]


def test_share_of_clipped_numbers_is_counted_once() -> None:
    map_ = ActionMap(Tuple([Box(-1, 1, (2,)), Discrete(3), Box(0, np.inf, (1,))]))
    assert map_.clipped_share() is None
    map_(np.array([[0.5, 1.5, 2, -0.1], [1.0, -1.0, 0, 7.0]]))
    map_(np.array([[-2.0, 0.0, 1, 0.0]]))
    assert map_.clipped_share() == pytest.approx(3 / 9)
    map_(np.array([[0.5, 1.5, 2, -0.1], [1.0, -3.0, 0, -7.0]]), np.array([False, True]))
    assert map_.clipped_share() == pytest.approx(2 / 3)
    assert map_.clipped_share() is None
    assert ActionMap(Discrete(3)).clipped_share() is None


def test_warning_names_the_part_with_an_unused_bound() -> None:
    space = Dict({"a": Discrete(2), "b": Tuple([Box(-1, 1, (2,)), Box([-1, 0], [1, 2e6])])})
    assert str(ActionMap(space).unused_bounds()).startswith("the bound 2e+06 of action['b'][1] element 1 is not below")


# Entropy weights.


@pytest.mark.parametrize(
    ("space", "weights", "sentence"),
    [
        (DEEP, {"move": 0.0, "arms": 2.0, "arms/1/grip": 0.5}, None),
        (Tuple([Discrete(2), Box(-1, 1, (1,))]), {0: 2.0, 1: 0.5}, None),
        (DEEP, {"mov": 1}, "unknown part of the actions 'mov'; did you mean 'move'?"),
        (DEEP, {"arms/3": 1}, "unknown part of the actions 'arms/3'; did you mean 'arms/2'?"),
        (
            DEEP,
            {"tail": 1},
            "unknown part of the actions 'tail'; known: arms, arms/0, arms/1, arms/1/bend, arms/1/grip, arms/2, move",
        ),
        (Discrete(3), {"a": 1}, "names 'a', and an action has one part only; use entropy_beta"),
        (Dict({"a": Discrete(3)}), {"a": 1}, "names 'a', and an action has one part only; use entropy_beta"),
    ],
)
def test_entropy_weights_must_name_parts(space: Space, weights: dict[Any, float], sentence: str | None) -> None:
    refused = DA3C.refusal(DA3C.configure({"path": "da3c", "entropy_weights": weights}), VECTOR, space)
    if sentence is None:
        assert refused is None
    else:
        assert refused is not None
        assert refused.sentence.startswith(f"da3c cannot handle the action space {space}: algorithm.entropy_weights")
        assert refused.sentence.endswith(sentence)


def test_nearest_named_part_gives_the_entropy_weight() -> None:
    weighted = ActionMap(DEEP, entropy_weights={"arms": 2.0, "arms/1": 0.5}).policy
    outputs = outputs_of(ActionMap(DEEP), 5)
    actions = weighted.sample(outputs, np.random.default_rng(0))
    assert isinstance(weighted, Composite)
    wanted = np.zeros(5)
    for index, (part, weight) in enumerate(zip(weighted.parts, (2.0, 0.5, 0.5, 2.0, 1.0), strict=True)):
        own = {head: outputs[f"{head}.{index}"] for head in part.heads}
        zero = np.zeros(5, np.float32)
        wanted += weight * part.gradient(own, weighted.actions_of(index, actions), zero, zero)[2]
    found = weighted.gradient(outputs, actions, *np.zeros((2, 5), np.float32))[2]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_weights_of_boxes_apply_to_their_numbers() -> None:
    space = Tuple([Box(-1, 1, (2,)), Box(-1, 1, (1,))])
    outputs = {"mean": np.zeros((1, 3), np.float32), "variance": np.zeros((1, 3), np.float32)}
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    plain, weighted = (
        ActionMap(space, entropy_weights=weights).policy.gradient(outputs, np.zeros((1, 3)), zero, one)[0]["variance"]
        for weights in ({}, {"0": 3.0, "1": 0.0})
    )
    np.testing.assert_allclose(weighted, plain * [3, 3, 0], rtol=1e-6)


@pytest.mark.parametrize("space", [DEEP, Tuple([Box(-1, 1, (2,)), Box(-1, 1, (1,))])], ids=["mixed", "boxes"])
def test_entropy_weights_may_change_on_resume(space: Space) -> None:
    configs = [
        DA3C.configure({"path": "da3c", "entropy_weights": weights})
        for weights in ({}, dict.fromkeys(("move", "arms") if space is DEEP else ("0",), 0.5))
    ]
    assert changed_keys(configs[0].model_description(), configs[1]) == []
    vectors = [DA3C.ParameterServer(config, VECTOR, space).initial_parameters(1) for config in configs]
    np.testing.assert_array_equal(*vectors)


# Networks of single kinds, as before there were mixed actions: checkpoints depend on them.


@pytest.mark.parametrize(
    ("name", "space", "keys", "heads", "size", "total"),
    [
        ("da3c", Discrete(3), {}, {"policy": 3}, 9220, 618.901),
        ("da3c", MultiDiscrete([2, 3]), {}, {"policy": 5}, 9350, 618.766),
        ("da3c", MultiBinary([2, 2]), {}, {"policy": 4}, 9285, 619.53),
        ("da3c", Discrete(2, 5), {"lstm": True}, {"policy": 2}, 333955, 8512.24),
        ("da3c_cont", Box(-1, 1, (2,)), {}, {"mean": 2, "variance": 2}, 132869, 4744.53),
        (
            "da3c_cont",
            Box([-2, 0, -np.inf], [2, 10, np.inf]),
            {"lstm": False, "spherical": True, "initial_variance": 0.3},
            {"mean": 3, "variance": 1},
            1925,
            54.6064,
        ),
        (
            "da3c_cont",
            Tuple([Box(-1, 1, (2, 2)), Dict({"b": Box(0, 5, (1,)), "a": Box(shape=())})]),
            {"lstm": False, "network": {"separate": True}},
            {"mean": 6, "variance": 6},
            2957,
            58.7310,
        ),
    ],
)
def test_networks_of_single_kinds_are_unchanged(
    name: str, space: Space, keys: dict[str, Any], heads: dict[str, int], size: int, total: float
) -> None:
    config = ALGORITHMS[name].configure({"path": name} | keys)
    assert config.actions(space).policy.heads == heads
    vector = ALGORITHMS[name].ParameterServer(config, VECTOR, space).initial_parameters(3)
    places = np.arange(1, vector.size + 1) / vector.size
    assert (vector.size, np.abs(vector) @ places) == (size, pytest.approx(total, rel=1e-4))


# Agents.


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"lstm": True, "network": {"dense": [8], "lstm_size": 4}},
        {"whole_episodes": True, "longest_episode": 11},
        {"overlap": False, "spherical": True, "entropy_weights": {"arms": 0.5}},
        {"normalize_observations": True, "normalize_rewards": "standardize", "initial_variance": 4.0},
    ],
    ids=str,
)
def test_agent_acts_within_a_deep_space_and_learns(keys: dict[str, Any]) -> None:
    config = DA3C.configure({"path": "da3c"} | keys)
    agent, parameters = make_agent(DA3C, config, VECTOR, DEEP, environments=3)
    live(agent, RandomEnvironments(VECTOR, DEEP, 3), 60)
    assert len(parameters.pushes) > 3
    assert all(np.isfinite(push.gradient).all() for push in parameters.pushes if push.gradient is not None)


def test_share_of_clipped_actions_is_pushed() -> None:
    config = DA3C.configure({"path": "da3c", "initial_variance": 1e4, "episode_len": 5})
    for space, known in ((DEEP, True), (MultiBinary(2), False)):
        agent, parameters = make_agent(DA3C, config, VECTOR, space, environments=3)
        live(agent, RandomEnvironments(VECTOR, space, 3), 21)
        shares = [value for name, value in parameters.scalars if name == "actions/clipped"]
        # Two of the four real numbers have bounds, and a variance of 1e4 exceeds them nearly always.
        assert len(shares) == (len(parameters.pushes) if known else 0)
        assert all(0.4 < share <= 0.5 for share in shares), shares
