"""The JSON schema accepts and refuses the same files as RELAAX."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from relaax.algorithm_base import ConfigBase
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration.reference import schema_of
from relaax.configuration.yaml_file import parse_yaml
from relaax.hosting.loader import load_config

CONFIG = bundled_folder("config")
ACCEPTANCE = Path(__file__).parent.parent / "data" / "da3c_ale_boxing.yaml"
FILES = [*sorted(CONFIG.glob("*.yaml")), ACCEPTANCE]


@cache
def validator(*algorithms: str) -> Any:
    configs = {name: load_config(name, Path()) for name in algorithms or bundled_names("algorithms")}
    schema = schema_of(configs, ConfigBase)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def accepts(text: str, *algorithms: str) -> bool:
    """Validate a file both with RELAAX's YAML and with an editor's, where 1e8 is a text."""
    answers = {
        validator(*algorithms).is_valid(document) for document in (parse_yaml(text, "test"), yaml.safe_load(text))
    }
    assert len(answers) == 1
    return answers.pop()


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_configuration_is_valid(file: Path) -> None:
    text = file.read_text()
    assert accepts(text)
    algorithm = Path(yaml.safe_load(text)["algorithm"]["path"]).name
    assert accepts(text, algorithm)


@pytest.mark.parametrize("file", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.stem)
def test_bundled_configurations_name_the_schema_first(file: Path) -> None:
    assert file.read_text().splitlines()[0] == "# yaml-language-server: $schema=schema.json"


def test_schema_file_is_up_to_date() -> None:
    assert json.loads((CONFIG / "schema.json").read_text()) == validator().schema, "`make docs` writes it"


@pytest.mark.parametrize(
    "text",
    [
        "algorithm: {path: da3c}",
        "algorithm: {--path: da3c, --entropy-beta: 1e-2, max-global-step: 1e8}",
        "relaax_run: {--envs-per-client: 4, max_steps: 1e5}\n--algorithm: {path: ../algorithms/da3c/}",
        "relaax-run:\nalgorithm: {path: da3c_cont, spherical: true, reward_clipping: auto}",
        "relaax-run: {arguments: [--sticky, 0.25], target-return: null}\nalgorithm: {path: da3c}",
        "relaax-rlx-server: {device: 'gpu:1'}\nalgorithm: {path: da3c, network: {convolutions: [{filters: 1, kernel: "
        "8, stride: 4}], dense: [1e2]}}",
        "algorithm: {path: mine.py, keys_of_its_own: {a: 1}, seed: 3}",
    ],
)
def test_schema_accepts_valid_files(text: str) -> None:
    assert accepts(text)


@pytest.mark.parametrize(
    "text",
    [
        "algorithm: {}",
        "{}",
        "algoritm: {path: da3c}",
        "algorithm: {path: da3c, entropi_beta: 1}",
        "algorithm: {path: da3c, entropy_beta: -1}",
        "algorithm: {path: da3c, entropy_beta: 1e}",
        "algorithm: {path: ../algorithms/da3c, double: true}",
        "algorithm: {path: da3c, rmsprop: {}}",
        "algorithm: {path: da3c, RMSProp: {decay: 1}}",
        "algorithm: {path: mine.py, seed: -1}",
        "relaax-run: {clients: 0}\nalgorithm: {path: da3c}",
        "relaax-run: [1]\nalgorithm: {path: da3c}",
        "relaax-rlx-server: {bind: localhost}\nalgorithm: {path: da3c}",
        "relaax-rlx-server: {log-level: LOUD}\nalgorithm: {path: da3c}",
        "relaax-rlx-server: {device: tpu}\nalgorithm: {path: da3c}",
    ],
)
def test_schema_refuses_invalid_files(text: str) -> None:
    assert not accepts(text)


def test_schema_of_one_algorithm_applies_to_any_path() -> None:
    assert accepts("algorithm: {path: ../elsewhere/copy, double: true}", "n_step_q")
    assert not accepts("algorithm: {path: ../elsewhere/copy, double: true}", "da3c")


def test_every_key_is_described() -> None:
    def nodes(node: Any) -> Any:
        if isinstance(node, dict):
            yield from node.get("properties", {}).items()
            for inner in node.values():
                yield from nodes(inner)
        elif isinstance(node, list):
            for inner in node:
                yield from nodes(inner)

    found = [(name, node) for part in validator().schema["definitions"].values() for name, node in nodes(part)]
    assert len(found) > 60
    assert [name for name, node in found if not node.get("description")] == []
