"""Keys that may change when a run is resumed: their declarations, and the comparison with a checkpoint."""

from __future__ import annotations

import pytest
from pydantic import Field

from relaax.algorithm_base import ConfigBase, Fixed, Free, Section
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import Resume, resume_rules
from relaax.hosting.fingerprint import changed_keys
from relaax.hosting.loader import load_config


class Layer(Section):
    width: int = 3
    name: Free[str] = "a"


class Parent(ConfigBase):
    undeclared: int = 1
    history: Fixed[int] = 4
    rate: Free[float] = Field(0.1, gt=0)
    layer: Layer = Layer()
    layers: Free[list[Layer]] = Field([Layer()])
    optional: Layer | None = None
    api_token: str = "x"


class Child(Parent):
    rate: float = Field(0.2, gt=0)
    history: int = 5
    undeclared: Free[int] = 2


def rules(model: type[ConfigBase]) -> dict[str, Resume]:
    return {".".join(path): rule for path, rule in resume_rules(model)}


def differences(there: ConfigBase, here: ConfigBase) -> list[str]:
    return [str(changed) for changed in changed_keys(there.model_description(), here)]


def test_undeclared_key_is_fixed() -> None:
    found = rules(Parent)
    assert found["undeclared"] is found["history"] is found["layer.width"] is found["optional"] is Resume.FIXED
    assert found["rate"] is found["layer.name"] is found["layers"] is Resume.FREE


def test_redeclared_key_inherits_the_rule_of_its_parent() -> None:
    found = rules(Child)
    assert found["rate"] is Resume.FREE
    assert found["history"] is Resume.FIXED
    assert found["undeclared"] is Resume.FREE


def test_changed_fixed_keys_are_reported_with_both_values() -> None:
    there = Parent(path="x", rate=3.0, history=4, layer=Layer(width=3, name="a"), optional=Layer())
    here = Parent(path="y", rate=4.0, history=2, layer=Layer(width=7, name="b"), seed=9, optimizer="adam")
    assert differences(there, here) == [
        'algorithm.optimizer is "rms_prop" in the checkpoint, "adam" in the configuration',
        "algorithm.history is 4 in the checkpoint, 2 in the configuration",
        "algorithm.layer.width is 3 in the checkpoint, 7 in the configuration",
        'algorithm.optional is {"width": 3, "name": "a"} in the checkpoint, null in the configuration',
    ]


def test_key_missing_in_checkpoint_is_compared_by_default() -> None:
    assert changed_keys({}, Parent(path="x")) == []
    assert changed_keys({"layer": None, "history": 4}, Parent(path="x")) == []
    assert [str(changed) for changed in changed_keys({"layer": {}}, Parent(path="x", layer=Layer(width=7)))] == [
        "algorithm.layer.width is 3 in the checkpoint, 7 in the configuration"
    ]


def test_removed_key_is_not_compared() -> None:
    assert changed_keys({"gone": 3, "layer": {"gone": 1}}, Parent(path="x")) == []


def test_secrets_are_not_compared() -> None:
    assert differences(Parent(path="x", api_token="one"), Parent(path="x", api_token="two")) == []
    there = Parent(path="x").model_description() | {"api_token": "(hidden)"}
    assert changed_keys(there, Parent(path="x", api_token="two")) == []


@pytest.mark.parametrize("name", bundled_names("algorithms"))
def test_every_bundled_key_declares_its_resume_rule(name: str) -> None:
    config = load_config(name, bundled_folder("algorithms"))
    declared = {
        key
        for owner in config.__mro__
        for key, field in getattr(owner, "__pydantic_fields__", {}).items()
        if any(isinstance(mark, Resume) for mark in field.metadata)
    }
    assert set(config.model_fields) - declared == set()


def test_keys_that_define_parameters_and_slots_are_fixed() -> None:
    fixed = {key for key, rule in rules(load_config("da3c_cont", bundled_folder("algorithms"))).items()
             if rule is Resume.FIXED}  # fmt: skip
    assert fixed == {
        "optimizer", "network.convolutions", "network.dense", "network.activation", "network.separate",
        "network.flatten_images", "network.lstm_size", "lstm", "history_len", "spherical", "normalize_observations",
        "normalize_rewards", "reward_clipping", "rewards_gamma", "subtract_mean_image", "action_mask",
    }  # fmt: skip


def test_configuration_read_from_a_file_compares_equal() -> None:
    config = load_config("da3c", bundled_folder("algorithms"))
    there = config.model_validate(
        {"path": "da3c", "network": {"convolutions": [{"filters": 1, "kernel": 2, "stride": 3}]}}
    )
    assert differences(there, there) == []
    assert differences(there, config(path="da3c")) == [
        'algorithm.network.convolutions is [{"filters": 1, "kernel": 2, "stride": 3}] in the checkpoint, '
        "null in the configuration"
    ]
