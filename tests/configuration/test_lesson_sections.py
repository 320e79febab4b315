"""The sections `environment-parameters`, `curriculum` and `opponents`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relaax.configuration import ConfigurationError, load_configuration
from relaax.configuration.lesson_sections import stored_curriculum
from relaax.lessons.values import ValueRange

TEXT = """
environment-parameters:
  gravity: 9.8
  step-size: {low: 0.1, high: 3e-1}
  rooms: {choices: [1, 2, 4]}
curriculum:
  lessons:
    - {name: near, parameters: {rooms: 1}, until: {mean-return: 0.8}}
    - {parameters: {step_size: {low: 0.1, high: 0.2}}, until: {progress: 0.5}}
    - {}
algorithm:
  path: da3c
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lessons.yaml"
    path.write_text(TEXT, "utf-8")
    return path


def test_lessons_of_a_file(file: Path) -> None:
    curriculum = load_configuration(file).curriculum()
    assert curriculum is not None
    assert (curriculum.count, curriculum.lesson.name, curriculum.lesson.episodes) == (3, "near", 100)
    assert str(curriculum.edition) == "gravity 9.8, step_size 0.1 to 0.3, rooms 1"
    assert str(curriculum.final_edition) == "gravity 9.8, step_size 0.1 to 0.3, rooms 1 | 2 | 4"
    curriculum.record([(1, 0.8)] * 100, 0.0)
    assert str(curriculum.edition) == "gravity 9.8, step_size 0.1 to 0.2, rooms 1 | 2 | 4"


def test_values_of_the_command_line(file: Path) -> None:
    overrides = ["environment-parameters.gravity={choices: [1]}", "curriculum.lessons=[]"]
    curriculum = load_configuration(file, overrides).curriculum()
    assert curriculum is not None
    assert (curriculum.count, curriculum.edition.values["gravity"]) == (1, ValueRange(choices=(1.0,)))


def test_file_without_parameters_has_no_curriculum(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("algorithm: {path: da3c}\n", "utf-8")
    assert load_configuration(path).curriculum() is None


def test_stored_configuration_gives_the_same_lessons(file: Path) -> None:
    configuration = load_configuration(file)
    found, wanted = stored_curriculum(configuration.as_dict()), configuration.curriculum()
    assert found is not None and wanted is not None
    assert (found.edition, found.final_edition, found.count) == (wanted.edition, wanted.final_edition, wanted.count)
    assert stored_curriculum({}) is None


FORMS = r"a number, {low: 0, high: 1} or {choices: [1, 2, 4]} is expected"


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("environment-parameters.gravity={low: 3}", f"environment-parameters.gravity: {FORMS}"),
        ("environment-parameters.gravity={low: 3, high: 1}", "environment-parameters.gravity: low, 3, exceeds high, 1"),
        ("environment-parameters.gravity={choices: []}", f"environment-parameters.gravity: {FORMS}"),
        ("environment-parameters.gravity={choices: [a]}", f"environment-parameters.gravity: {FORMS}"),
        ("environment-parameters.gravity=true", f"True cannot be used: {FORMS}"),
        ("environment-parameters.gravity=.nan", "nan cannot be used: at most 1e+30 is allowed, and not NaN"),
        ("environment-parameters.3d=1", "'3d' is no name: use letters, digits and underscores"),
        (
            "curriculum.lessons=[{parameters: {room: 3}}]",
            "curriculum.lessons.0.parameters: unknown parameter 'room'; did you mean 'rooms'?: add it to",
        ),
        ("curriculum.lessons=[{until: {mean_return: 1}}]", "lessons.0: the last lesson has no next one: omit until"),
        ("curriculum.lessons=[{}, {}]", "lessons.0: until is missing: without it the next lesson never begins"),
        ("curriculum.lessons=[{untill: 3}]", "curriculum.lessons.0: unknown key 'untill'; did you mean 'until'?"),
        ("curriculum.lessons=[{until: {}}, {}]", "give either mean_return or progress"),
        ("curriculum.lessons=[{until: {mean_return: 1, progress: 0.1}}, {}]", "give either mean_return or progress"),
        ("curriculum.lessons=[{until: {progress: 2}}, {}]", "less than or equal to 1"),
        ("curriculum.lessons=[{name: a, until: {progress: 1}}, {name: a}]", "two lessons have the name 'a'"),
    ],
)
def test_wrong_values_are_refused(file: Path, override: str, error: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        load_configuration(file, [override])
    assert error in str(raised.value)


def test_too_many_parameters_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("environment-parameters:\n" + "".join(f"  p{i}: 1\n" for i in range(65)), "utf-8")
    with pytest.raises(ConfigurationError, match="65 parameters are given; at most 64 are possible"):
        load_configuration(path)


def written(tmp_path: Path, opponents: str) -> Path:
    path = tmp_path / "self_play.yaml"
    path.write_text(f"opponents: {opponents}\nalgorithm: {{path: da3c}}\n", "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "keep", "every"),
    [("{keep: 5, every: 50000}", 5, 50_000), ("{every: 7}", 10, 7), ("{}", 10, None), ("null", 10, None)],
)
def test_opponents_of_a_file(tmp_path: Path, text: str, keep: int, every: int | None) -> None:
    section = load_configuration(written(tmp_path, text)).opponents
    assert (section.keep, section.every) == (keep, every)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{keep: 5}", "keep has no effect without every: add the steps between checkpoints, such as every: 50000"),
        ("{keep: 0, every: 5}", "opponents.keep: "),
        ("{every: 0}", "opponents.every: "),
        ("{evry: 5}", "did you mean 'every'"),
    ],
)
def test_wrong_opponents_are_refused(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        load_configuration(written(tmp_path, text))


def test_effective_configuration_keeps_opponents_off(tmp_path: Path) -> None:
    effective = load_configuration(written(tmp_path, "null")).as_dict()
    path = tmp_path / "effective.yaml"
    path.write_text(json.dumps(effective), "utf-8")
    assert load_configuration(path).opponents.every is None
