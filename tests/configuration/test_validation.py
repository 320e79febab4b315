from __future__ import annotations

from typing import Any

import pydantic
import pytest

from relaax.configuration import ConfigurationError, Section, nearest, unknown, validate_section
from relaax.configuration.validation import normalized


class Layer(Section):
    filters: int = pydantic.Field(gt=0)
    stride: int = 1


class Optimizer(Section):
    decay: float = 0.99
    gradient_norm_clipping: float | None = 40.0


class Sample(Section):
    path: str
    steps: int = 5
    rate: float = 1e-3
    clip: pydantic.PositiveFloat | None = None
    layers: list[Layer] | None = None
    optimizer: Optimizer = pydantic.Field(default_factory=Optimizer, alias="RMSProp")


def check(**data: Any) -> Sample:
    return validate_section(Sample, {"path": "x"} | data, "algorithm")


def refusal(data: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        validate_section(Sample, data, "algorithm")
    return str(refused.value).splitlines()


def test_keys_with_dashes_are_accepted_at_every_depth() -> None:
    data = {"--log-level": 1, "log": {"-max-steps": [{"a-b": 2}], 5: 6}}
    assert normalized(data) == {"log_level": 1, "log": {"max_steps": [{"a-b": 2}], "5": 6}}
    found = validate_section(Sample, {"--path": "x", "RMSProp": {"--gradient-norm-clipping": 3}}, "algorithm")
    assert found.optimizer.gradient_norm_clipping == 3


def test_two_spellings_of_one_key_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="the key '--log-level' appears twice: with underscores it is 'log_le"):
        normalized({"log_level": 1, "--log-level": 2})


def test_whole_floats_are_accepted_as_integers() -> None:
    found = check(steps=1e8, rate=7e-4)
    assert (found.steps, type(found.steps)) == (100_000_000, int)
    assert (found.rate, type(found.rate)) == (7e-4, float)
    assert type(check(rate=1).rate) is float


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ({"path": "x", "stepps": 3}, ["algorithm: unknown key 'stepps'; did you mean 'steps'?"]),
        (
            {"path": "x", "optimizer": {}},
            ["algorithm: unknown key 'optimizer'; known: RMSProp, clip, layers, path, rate, steps"],
        ),
        ({"path": "x", "rmsprop": {}}, ["algorithm: unknown key 'rmsprop'; did you mean 'RMSProp'?"]),
        ({"path": "x", "RMSProp": {"decai": 1}}, ["algorithm.RMSProp: unknown key 'decai'; did you mean 'decay'?"]),
        (
            {"path": "x", "RMSProp": {"zzz": 1}},
            ["algorithm.RMSProp: unknown key 'zzz'; known: decay, gradient_norm_clipping"],
        ),
        (
            {"path": "x", "layers": [{"filters": 1}, {"filters": 1, "strid": 2}]},
            ["algorithm.layers.1: unknown key 'strid'; did you mean 'stride'?"],
        ),
        ({"path": "x", "layers": [{}]}, ["algorithm.layers.0.filters: is required and has no default"]),
        (
            {"path": "x", "layers": [{"filters": 0}]},
            ["algorithm.layers.0.filters: 0 cannot be used: input should be greater than 0"],
        ),
        (
            {"path": "x", "RMSProp": 3},
            ["algorithm.RMSProp: 3 cannot be used: keys and values are expected"],
        ),
        (
            {"path": "x", "layers": 3},
            ["algorithm.layers: 3 cannot be used: input should be a valid list"],
        ),
        ({}, ["algorithm.path: is required and has no default"]),
        (None, ["algorithm.path: is required and has no default"]),
        (
            {"path": "x", "steps": "many"},
            [
                "algorithm.steps: 'many' cannot be used: input should be a valid integer, unable to parse string as an"
                " integer"
            ],
        ),
        (
            {"path": "x", "steps": 1.5},
            [
                "algorithm.steps: 1.5 cannot be used: input should be a valid integer, got a number with a fractional"
                " part"
            ],
        ),
        ({"path": "x", "steps": True}, ["algorithm.steps: True cannot be used: a number is required, not a bool"]),
        ({"path": "x", "clip": False}, ["algorithm.clip: False cannot be used: a number is required, not a bool"]),
        ({"path": 3}, ["algorithm.path: 3 cannot be used: input should be a valid string"]),
        (
            {"path": "x", "rate": float("inf")},
            ["algorithm.rate: inf cannot be used: input should be a finite number"],
        ),
        ({"path": "x", "clip": -1}, ["algorithm.clip: -1 cannot be used: input should be greater than 0"]),
        (
            {"path": "x", "steps": "a", "typo": 1, "rate": None},
            [
                "algorithm: unknown key 'typo'; known: RMSProp, clip, layers, path, rate, steps",
                "algorithm.steps: 'a' cannot be used: input should be a valid integer, unable to parse string as an"
                " integer",
                "algorithm.rate: None cannot be used: input should be a valid number",
            ],
        ),
        ([1], ["algorithm: a mapping of keys to values is expected, not [1]"]),
        ("text", ["algorithm: a mapping of keys to values is expected, not 'text'"]),
    ],
)
def test_each_error_has_one_line(data: Any, lines: list[str]) -> None:
    assert sorted(refusal(data)) == sorted(lines)


class Choice(Section):
    clipping: pydantic.PositiveFloat | str | None = None
    size: int | list[int] | None = None


def test_errors_of_a_union_are_in_one_line() -> None:
    with pytest.raises(ConfigurationError) as refused:
        validate_section(Choice, {"size": {"a": 1}}, "x")
    assert str(refused.value) == (
        "x.size: {'a': 1} cannot be used: input should be a valid integer, or input should be a valid list"
    )


def test_section_is_immutable() -> None:
    with pytest.raises(pydantic.ValidationError):
        check().steps = 3


@pytest.mark.parametrize(
    ("word", "known", "expected"),
    [
        ("RMSPROP", ["rms_prop", "RMSProp"], "RMSProp"),
        ("entropy", ["entropy_beta", "episode_len"], "entropy_beta"),
        ("qqq", ["entropy_beta"], None),
        ("", ["a"], None),
        ("a", [], None),
    ],
)
def test_nearest_word_is_a_similar_one_or_none(word: str, known: list[str], expected: str | None) -> None:
    assert nearest(word, known) == expected


def test_unknown_without_a_similar_word_lists_all() -> None:
    assert unknown("section", "qqq", ["b", "a"]) == "unknown section 'qqq'; known: a, b"
