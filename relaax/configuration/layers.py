"""Values laid over each other: those of a file, of environment variables and of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from relaax.configuration.keys import KeyPath, Models, field_at, kinds_of
from relaax.configuration.validation import KWARGS, ConfigurationError
from relaax.configuration.yaml_file import dump_line, parse_yaml


class Layers:
    """The values of all sections, and where each came from."""

    def __init__(self, sections: Mapping[str, Mapping[str, Any]], origin: str) -> None:
        self.data: dict[str, dict[str, Any]] = {section: dict(values) for section, values in sections.items()}
        self.origins = {path: origin for section, values in sections.items() for path in _leaves(values, (section,))}

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Set one key; what stood there is gone, with the keys below it."""
        node = self.data[path[0]]
        for part in path[1:-1]:
            inner = node.get(part)
            node[part] = dict(inner) if isinstance(inner, Mapping) else {}
            node = node[part]
        node[path[-1]] = value
        kept = {known: came for known, came in self.origins.items() if known[: len(path)] != path}
        self.origins = kept | dict.fromkeys(_leaves(value, path), origin)


def _leaves(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    """The paths of the values that are no mappings."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    else:
        yield path


def value_of(text: str, path: KeyPath, models: Models, name: str) -> Any:
    """What a text means as the value of a key: YAML, but the text itself where the key wants a text.

    So an environment may be called 1943, no or #1. Raises ConfigurationError with `name`.
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
    """A text as the value of a key that wants one: as it stands, but for quotes around all of it. `null` is None.

    Raises ConfigurationError with `name` where there is none.
    """
    text = text.strip()
    if text == "null":
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        try:
            quoted = parse_yaml(text, name)
        except ConfigurationError:  # such as 'a' or 'b': not around all of it
            quoted = text
        text = quoted if isinstance(quoted, str) else text
    if not text:
        raise _no_value(name)
    return text


def _no_value(name: str) -> ConfigurationError:
    return ConfigurationError(f"{name}: a value is missing; null is the one for none at all, where a key may have none")


def printed(document: Mapping[str, Any], origins: Mapping[KeyPath, str]) -> str:
    """A configuration file with these values, each with a comment that says where it came from."""
    return "\n".join(_lines(document, (), origins)) + "\n"


def _lines(values: Mapping[str, Any], path: KeyPath, origins: Mapping[KeyPath, str]) -> Iterator[str]:
    indent = "  " * len(path)
    for key, value in values.items():
        # Sections of the servers are written with dashes, as in the files; the algorithms' have the names of Python.
        written = key if not path or path[0] == "algorithm" else key.replace("_", "-")
        if KWARGS in path:
            written = dump_line(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{written}:"
            yield from _lines(value, (*path, key), origins)
        else:
            yield f"{indent}{written}: {dump_line(value)}  # {origins.get((*path, key), 'default')}"
