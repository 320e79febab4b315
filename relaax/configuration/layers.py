"""Layered values: the command line over environment variables over a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from relaax.configuration.keys import KeyPath, Models, field_at, kinds_of
from relaax.configuration.validation import FOREIGN, ConfigurationError
from relaax.configuration.yaml_file import dump_line, parse_yaml


class Layers:
    """The values of all sections and their origins."""

    def __init__(self, sections: Mapping[str, Mapping[str, Any]], origin: str) -> None:
        self.data: dict[str, dict[str, Any]] = {section: dict(values) for section, values in sections.items()}
        self.origins = {path: origin for section, values in sections.items() for path in _leaves(values, (section,))}

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Set one key; discard its former value, including the keys below it."""
        node = self.data[path[0]]
        for part in path[1:-1]:
            inner = node.get(part)
            node[part] = dict(inner) if isinstance(inner, Mapping) else {}
            node = node[part]
        node[path[-1]] = value
        kept = {known: came for known, came in self.origins.items() if known[: len(path)] != path}
        self.origins = kept | dict.fromkeys(_leaves(value, path), origin)


def _leaves(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the paths of the values that are not mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path


def value_of(text: str, path: KeyPath, models: Models, name: str) -> Any:
    """Parse a text as the value of a key: as YAML, or literally if the key expects a text.

    An environment may thus be called 1943, no or #1. Raises ConfigurationError with `name`.
    """
    field = field_at(path, models)
    if field is not None and kinds_of(field.annotation) <= {str, type(None)}:
        return text_of(text, name)
    value = parse_yaml(text, name)
    if value is None and text.strip() not in _NULL:
        raise _no_value(name)
    return value


_NULL = ("null", "Null", "NULL", "~")


def text_of(text: str, name: str) -> str | None:
    """Return a text as the value of a key that expects one, without surrounding quotes; `null` is None.

    Raises ConfigurationError with `name` if the text is empty.
    """
    text = text.strip()
    if text == "null":
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        try:
            quoted = parse_yaml(text, name)
        except ConfigurationError:  # such as 'a' or 'b': the quotes do not surround the whole
            quoted = text
        text = quoted if isinstance(quoted, str) else text
    if not text:
        raise _no_value(name)
    return text


def _no_value(name: str) -> ConfigurationError:
    return ConfigurationError(f"{name}: a value is missing; write null for none, if the key allows it")


def printed(document: Mapping[str, Any], origins: Mapping[KeyPath, str]) -> str:
    """Return a configuration file with these values, each with a comment that names its origin."""
    return "\n".join(_lines(document, (), origins)) + "\n"


def _lines(values: Mapping[str, Any], path: KeyPath, origins: Mapping[KeyPath, str]) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in values.items():
        # Keys of the servers are written with dashes, as in the files; keys of algorithms are Python names.
        written = key if not path or path[0] == "algorithm" else key.replace("_", "-")
        if set(FOREIGN) & set(path):
            written = dump_line(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{written}:"
            yield from _lines(value, (*path, key), origins)
        else:
            yield f"{indent}{written}: {dump_line(value)}  # {origins.get((*path, key), 'default')}"
