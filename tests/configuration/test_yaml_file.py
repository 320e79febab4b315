from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from relaax.configuration import ConfigurationError
from relaax.configuration.yaml_file import parse_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e8", 1e8),
        ("1E8", 1e8),
        ("7e-4", 7e-4),
        ("-7e-4", -7e-4),
        ("+2e+3", 2000.0),
        ("1.5e3", 1500.0),
        ("2.e3", 2000.0),
        ("1_000e3", 1e6),
        ("0.99", 0.99),
        (".inf", math.inf),
    ],
)
def test_floats_without_dot_or_sign_are_numbers(text: str, value: float) -> None:
    found = parse_yaml(text, "test")
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("0x1f", 31),
        ("true", True),
        ("null", None),
        ("", None),
        ("1e", "1e"),
        ("e8", "e8"),
        ("1e8x", "1e8x"),
        ("localhost:7000", "localhost:7000"),
        ("v1e8", "v1e8"),
        ('"1e8"', "1e8"),
        ("[84, 84]", [84, 84]),
        ("{a: 1e2}", {"a": 100.0}),
    ],
)
def test_other_values_are_standard_yaml(text: str, value: Any) -> None:
    found = parse_yaml(text, "test")
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "test: line 3: the key 'a' appears twice"),
        ("x:\n  a: 1\n  a: 1\n", "test: line 3: the key 'a' appears twice"),
        ("x: {b: 1, b: 2}", "test: line 1: the key 'b' appears twice"),
        ("a: [1, 2", "test, line 1, column 9: expected ',' or ']', but got '<stream end>'"),
        ("a: b: c", "test, line 1, column 5: mapping values are not allowed here"),
        ("\ta: 1", "test, line 1, column 1: found character '\\t' that cannot start any token"),
        ("? [1, 2]\n: 3", "test, line 1, column 3: found unhashable key"),
        ("a: *b", "test, line 1, column 4: found undefined alias 'b'"),
        ("a: 1\n---\nb: 2", "test, line 2, column 1: but found another document"),
        (
            "!!python/object/apply:os.getcwd []",
            "test, line 1, column 1: could not determine a constructor for the tag"
            " 'tag:yaml.org,2002:python/object/apply:os.getcwd'",
        ),
    ],
)
def test_error_names_line_and_column(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_yaml(text, "test")
    assert str(refused.value) == message
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_too_deep_document_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"test: "):
        parse_yaml("[" * 5000, "test")


def test_merge_keys_are_supported() -> None:
    text = "base: &base {a: 1, b: 2}\nmore:\n  <<: *base\n  b: 3\n"
    assert parse_yaml(text, "test")["more"] == {"a": 1, "b": 3}


def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff\xfe")
    for path, message in [
        (tmp_path / "missing.yaml", "missing.yaml: no such file"),
        (tmp_path, "cannot be read: "),
        (binary, "binary.yaml: cannot be read: "),
        (binary / "inside.yaml", "inside.yaml: cannot be read: "),
    ]:
        with pytest.raises(ConfigurationError) as refused:
            read_yaml(path)
        assert message in str(refused.value)
        assert str(path) in str(refused.value)


def test_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("a: [")
    with pytest.raises(ConfigurationError, match=r"wrong\.yaml, line 1, column 5: "):
        read_yaml(path)
