"""YAML files in which `1e8` and `7e-4` are numbers."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from relaax.configuration.validation import ConfigurationError
from relaax.files import read_bounded_text

# YAML 1.1 requires a dot and a signed exponent in a float.
_NUMBER = re.compile(r"^[-+]?(?:[0-9][0-9_]*)(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")


class _YamlLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # `<<: *other` is not a key
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):
                if key in seen:
                    raise ConfigurationError(f"line {key_node.start_mark.line + 1}: the key {key!r} appears twice")
                seen.add(key)
        return super().construct_mapping(node, deep)


class _YamlDumper(yaml.SafeDumper):
    """A dumper that quotes texts which `_YamlLoader` would read as numbers."""


for _side in (_YamlLoader, _YamlDumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _NUMBER, list("-+0123456789"))


def dump_line(value: Any) -> str:
    """Return a value as one line of YAML that `parse_yaml` reads back."""
    text = yaml.dump(value, Dumper=_YamlDumper, default_flow_style=True, width=1e9, allow_unicode=True)
    return str(text).removesuffix("...\n").strip()


def parse_yaml(text: str, name: str) -> Any:
    """Return the value of a YAML document. Raises ConfigurationError with `name`, line and column."""
    try:
        return yaml.load(text, _YamlLoader)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{name}{place}: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigurationError(f"{name}: {error}") from None


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file. Raises ConfigurationError."""
    try:
        text = read_bounded_text(path)
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    return parse_yaml(text, str(path))
