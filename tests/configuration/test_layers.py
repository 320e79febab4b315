"""Layers of values, and their text form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relaax.configuration import SECTIONS, ConfigurationError, format_configuration, load_configuration
from relaax.configuration.layers import Layers, value_of
from relaax.configuration.yaml_file import parse_yaml


def test_replaced_value_is_removed_with_its_nested_keys() -> None:
    layers = Layers({"algorithm": {"network": {"dense": [1], "lstm_size": 2}, "seed": 3}}, "file")
    layers.put(("algorithm", "network"), {"dense": [4]}, "above")
    layers.put(("algorithm", "seed", "deep"), 5, "above")
    assert layers.data == {"algorithm": {"network": {"dense": [4]}, "seed": {"deep": 5}}}
    assert layers.origins == {
        ("algorithm", "network", "dense"): "above",
        ("algorithm", "seed"): "file",  # the origin of the replaced value
        ("algorithm", "seed", "deep"): "above",
    }


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        (("relaax-run", "name"), "1943", "1943"),
        (("relaax-run", "name"), " no ", "no"),
        (("relaax-run", "name"), "2021-03-04", "2021-03-04"),
        (("relaax-run", "name"), "'1943'", "1943"),
        (("relaax-run", "name"), "null", None),
        (("relaax-run", "name"), "'null'", "null"),
        (("relaax-run", "name"), "a: b", "a: b"),
        (("relaax-run", "name"), "[a]", "[a]"),
        (("relaax-run", "name"), "- a", "- a"),
        (("relaax-run", "name"), "'a' or 'b'", "'a' or 'b'"),
        (("relaax-parameter-server", "checkpoint_dir"), "#ckpt", "#ckpt"),
        (("relaax-run", "max_steps"), "null", None),
        (("relaax-parameter-server", "checkpoint_dir"), "2021", "2021"),
        (("relaax-rlx-server", "bind"), "7001", "7001"),
        (("relaax-run", "clients"), "1e1", 10.0),
        (("relaax-run", "arguments"), "[--sticky, 0.25]", ["--sticky", 0.25]),
        (("relaax-run", "unknown"), "no", False),
        (("algorithm", "anything"), "1943", 1943),
    ],
)
def test_text_key_gets_its_value_literally(path: tuple[str, ...], text: str, value: Any) -> None:
    assert value_of(text, path, SECTIONS, "--set") == value


@pytest.mark.parametrize("key", ["name", "clients", "max_steps", "unknown"])
@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_empty_value_is_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^--set run.{key}=: a value is missing; write null for none"):
        value_of(text, ("relaax-run", key), SECTIONS, f"--set run.{key}=")


def test_numbers_among_arguments_become_texts(tmp_path: Any) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("relaax-run: {arguments: [--sticky, 0.25, --noop-max, 5]}\nalgorithm: {path: da3c}\n")
    assert load_configuration(file).run.arguments == ["--sticky", "0.25", "--noop-max", "5"]


def test_format_configuration_comments_each_origin() -> None:
    document = {
        "relaax-run": {"max_steps": None, "name": "a: b # c", "arguments": ["x, y", "é"]},
        "algorithm": {"entropy_beta": 1e-8, "RMSProp": {"decay": 0.5}, "network": {}},
    }
    text = format_configuration(
        document, {("relaax-run", "name"): "command line", ("algorithm", "RMSProp", "decay"): "some.yaml"}
    )
    lines = text.splitlines()
    assert lines[1] == "  max-steps: null  # default"
    assert lines[2] == "  name: 'a: b # c'  # command line"
    assert "    decay: 0.5  # some.yaml" in lines
    expected = {**document, "relaax-run": {"max-steps": None, "name": "a: b # c", "arguments": ["x, y", "é"]}}
    assert parse_yaml(text, "printed") == expected


def test_names_of_gymnasium_arguments_are_kept(tmp_path: Any) -> None:
    file = tmp_path / "some.yaml"
    kwargs = {"is_slippery": False, "config": {"show-cars": 1, "on": {"a: b": [1, "2"]}, "1e5": 2.5}}
    wrappers = ["GrayscaleObservation", {"my_package:Crop": {"to-shape": [84, 84]}}, {"ClipAction": None}]
    run = {"kwargs": kwargs, "wrappers": wrappers, "register": "my_package:tell"}
    file.write_text(json.dumps({"relaax-run": run, "algorithm": {"path": "da3c"}}))
    found = load_configuration(file, ["run.kwargs.map_name=8x8", "run.kwargs.max-steps=7"])
    assert found.run.kwargs == kwargs | {"map_name": "8x8", "max_steps": 7}
    assert (found.run.wrappers, found.run.register_) == (wrappers, "my_package:tell")
    text = format_configuration(found.as_dict(), found.origins)
    assert "    is_slippery: false  # some.yaml" in text.splitlines()
    assert "    map_name: 8x8  # command line" in text.splitlines()
    file.write_text(text)
    assert load_configuration(file) == found
