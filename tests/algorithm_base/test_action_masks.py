"""Action masks in observations: which part is the mask, what is left for the network, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import (
    Box,
    Dict,
    Discrete,
    InvalidObservation,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    load_algorithm,
)
from relaax.algorithm_base.acting.masks import ActionMasks, mask_part, mask_refusal, without_mask
from relaax.rlx.action_masks import choices_of

VECTOR, CAMERA = Box(-1, 1, shape=(3,)), Box(0, 255, shape=(36, 36), dtype="uint8")
MASK = Box(0, 1, shape=(4,), dtype="int8")
PLAIN = Dict({"observation": VECTOR, "action_mask": MASK})
NAME = "action_mask"


@pytest.mark.parametrize(
    ("space", "part", "left"),
    [
        (PLAIN, 0, VECTOR),
        (Dict({"view": CAMERA, "action_mask": MASK}), 0, CAMERA),
        (Dict({"a": VECTOR, "action_mask": MASK, "z": Discrete(2)}), 1, Dict({"a": VECTOR, "z": Discrete(2)})),
        (Dict({"unit": Tuple([VECTOR, Dict({"action_mask": MASK})]), "z": VECTOR}), 1,
         Dict({"unit": VECTOR, "z": VECTOR})),
        (Dict({"one": Dict({"x": VECTOR}), "action_mask": MASK}), 0, Dict({"x": VECTOR})),
        (Dict({"action_mask": Dict({"x": VECTOR}), "y": MASK}), None, None),  # a part with parts is no mask
        (Dict({"my_action_mask": MASK, "x": VECTOR}), None, None),
        (VECTOR, None, None),
    ],
)  # fmt: skip
def test_mask_is_the_leaf_with_the_key(space: Space, part: int | None, left: Space | None) -> None:
    assert mask_part(NAME, space) == part
    assert without_mask(NAME, space) == (space if left is None else left)
    assert mask_part(None, space) is None
    assert without_mask(None, space) == space


def test_choices_are_those_of_all_parts_in_order() -> None:
    space = Dict({"b": MultiDiscrete([2, 3]), "a": Tuple([Discrete(4), Box(), MultiBinary(9)])})
    assert choices_of(space) == (4, 2, 3)


HINT = "rename it, or set algorithm.action_mask to null to make it an input"


@pytest.mark.parametrize(
    ("observation_space", "action_space", "sentence"),
    [
        (PLAIN, Discrete(4, start=7), None),
        (PLAIN, MultiDiscrete([2, 2]), None),
        (PLAIN, Tuple([Discrete(4), Box(), MultiBinary(3)]), None),
        (Dict({"a": VECTOR, "action_mask": MultiBinary([2, 2])}), Discrete(4), None),
        (VECTOR, Box(), None),
        (PLAIN, Discrete(3), f"action_mask has 4 elements, and a mask of the action space Discrete(3) has 3; {HINT}"),
        (
            Dict({"a": VECTOR, "action_mask": Discrete(4)}),
            Discrete(4),
            f"action_mask is Discrete(4), and a mask of the action space Discrete(4) has 4; {HINT}",
        ),
        (
            PLAIN,
            MultiBinary(4),
            f"action_mask is a mask of actions, and the action space MultiBinary([4]) has no choices; {HINT}",
        ),
        (
            Dict({"a": Dict({"action_mask": MASK}), "b": Dict({"action_mask": MASK})}),
            Discrete(4),
            f"2 of its parts are named 'action_mask', and one mask is supported; {HINT}",
        ),
        (
            Dict({"action_mask": MASK}),
            Discrete(4),
            f"it has nothing but the mask action_mask, and the network needs an input; {HINT}",
        ),
    ],
)
def test_mask_that_does_not_fit_is_refused(observation_space: Space, action_space: Space, sentence: str | None) -> None:
    assert mask_refusal(NAME, observation_space, action_space) == sentence


@pytest.mark.parametrize("name", ["da3c", "async_q", "async_sarsa", "n_step_q", "gorila", "apex"])
def test_every_algorithm_takes_masks_and_refuses_wrong_ones(name: str) -> None:
    algorithm = load_algorithm(name, Path())

    def refusal(space: Space, **keys: Any) -> str | None:
        found = algorithm.refusal(algorithm.configure({"path": name} | keys), space, Discrete(4))
        return None if found is None else found.sentence

    wrong = Dict({"observation": VECTOR, "action_mask": Box(0, 1, (5,))})
    assert refusal(PLAIN) is None
    assert refusal(wrong) == (
        f"{name} cannot handle the observation space {wrong}: action_mask has 5 elements, and a mask of the action "
        f"space Discrete(4) has 4; {HINT}"
    )
    assert refusal(wrong, action_mask=None) is refusal(wrong, action_mask="legal") is None


@pytest.mark.parametrize("name", ["da3c", "n_step_q", "apex"])
@pytest.mark.parametrize("space", [VECTOR, CAMERA], ids=["vector", "image"])
def test_mask_is_no_input_of_the_network(name: str, space: Space) -> None:
    algorithm = load_algorithm(name, Path())
    config = algorithm.configure({"path": name, "normalize_observations": True, "subtract_mean_image": True})

    def declared(observation_space: Space) -> tuple[Any, ...]:
        server = algorithm.ParameterServer(config, observation_space, Discrete(4))
        return server.initial_parameters(0).tobytes(), server.statistics()

    assert declared(Dict({"seen": space, "action_mask": MASK})) == declared(space)
    as_input = algorithm.configure({"path": name, "action_mask": None})
    server = algorithm.ParameterServer(as_input, Dict({"seen": VECTOR, "action_mask": MASK}), Discrete(4))
    plain = algorithm.ParameterServer(as_input, Box(-1, 1, (7,)), Discrete(4))
    assert server.initial_parameters(0).size == plain.initial_parameters(0).size


def test_masks_are_read_for_each_choice() -> None:
    masks = ActionMasks(1, (2, 3), NAME)
    leaves = [np.zeros((3, 3)), np.array([[1, 0, 0, 0.5, -1], [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]), np.ones((3, 1))]
    valid, blocked = masks.read(leaves)
    assert valid.astype(int).tolist() == [[1, 0, 0, 1, 1], [1] * 5, [1] * 5]
    assert blocked.tolist() == [False, True, True]
    assert [leaf.shape for leaf in masks.inputs_of(leaves)] == [(3, 3), (3, 1)]


def test_mask_without_a_valid_action_names_environment_and_step() -> None:
    masks = ActionMasks(0, (2,), NAME)
    masks.check(np.array([False, False]), 8)
    with pytest.raises(InvalidObservation) as raised:
        masks.check(np.array([False, True]), 9)
    assert str(raised.value) == (
        "action_mask of environment 1 allows no action at step 9 over all episodes: every choice needs a valid action, "
        "unless the episode has ended"
    )
