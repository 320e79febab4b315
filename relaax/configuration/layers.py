"""Values in layers: the command line over environment variables, such as RELAAX_RUN__CLIENTS, over a file."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, SECTIONS, WEB_TOKEN, WORKERS_TOKEN
from relaax.configuration.validation import (
    FOREIGN,
    ConfigurationError,
    KeyPath,
    Models,
    all_paths,
    field_at,
    kinds_of,
    nearest,
)
from relaax.configuration.yaml_file import dump_line, parse_yaml

_log = logging.getLogger(__name__)


class Layers:
    """The values of all sections and their origins."""

    def __init__(self, sections: Mapping[str, Mapping[str, Any]], origin: str) -> None:
        self.data: dict[str, dict[str, Any]] = {section: dict(values) for section, values in sections.items()}
        self.origins = {path: origin for section, values in sections.items() for path in _leaves(values, (section,))}

    def put(self, path: KeyPath, value: Any, origin: str) -> None:
        """Set one key, and discard its previous value with the keys below it."""
        node = self.data[path[0]]
        for part in path[1:-1]:
            inner = node.get(part)
            node[part] = dict(inner) if isinstance(inner, Mapping) else {}
            node = node[part]
        node[path[-1]] = value
        kept = {known: source for known, source in self.origins.items() if known[: len(path)] != path}
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

    So an environment may have the name 1943, no or #1. Raises ConfigurationError with `name`.
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
        except ConfigurationError:  # not one quoted text, as in: 'a' or 'b'
            quoted = text
        text = quoted if isinstance(quoted, str) else text
    if not text:
        raise _no_value(name)
    return text


def _no_value(name: str) -> ConfigurationError:
    return ConfigurationError(f"{name}: a value is missing; write null for none, if the key allows it")


def format_configuration(document: Mapping[str, Any], origins: Mapping[KeyPath, str]) -> str:
    """Return the text of a configuration file with these values, each with a comment that names its origin."""
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


PREFIX = "RELAAX_"
SECRETS = (ENVIRONMENTS_TOKEN, WORKERS_TOKEN, REPLAY_TOKEN, WEB_TOKEN)
"""Variables of secrets. They are not keys, because secrets must not be in a file."""

_SECTIONS = [name.removeprefix("relaax-").replace("-", "_").upper() for name in (*SECTIONS, "algorithm")]
_KEY = re.compile(f"{PREFIX}(?:RELAAX_)?(?:{'|'.join(_SECTIONS)})__")
_NEAR = 0.8  # Kubernetes' variables of Services, such as RELAAX_RLX_SERVER_PORT, score lower


def variable_of(path: KeyPath) -> str:
    """Return the name of the variable that sets a key."""
    section, *keys = path
    return PREFIX + "__".join([section.removeprefix("relaax-").replace("-", "_"), *keys]).upper()


def variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with two underscores after a section's name: they set keys, or are misspelt."""
    return {name: text for name, text in environ.items() if _KEY.match(name)}


def warn_of_misspelt(environ: Mapping[str, str], models: Models) -> None:
    """Log a warning for each variable that sets nothing but has nearly the name of one that does.

    Ignore other variables that begin with RELAAX_: Kubernetes names variables after its Services.
    """
    known = [*SECRETS, *(variable_of(path) for path in all_paths(models))]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in SECRETS and not _KEY.match(name):
            guess = _meant(name, known)
            if guess is not None:
                _log.warning("the environment variable %s has no effect; did you mean %s?", name, guess)


def _meant(name: str, known: list[str]) -> str | None:
    """Return the known variable most similar to `name`, ignoring a section's prefix; None if none is similar."""
    section = next((f"{PREFIX}{section}_" for section in _SECTIONS if name.startswith(f"{PREFIX}{section}_")), PREFIX)
    rests = {variable.removeprefix(section).lstrip("_"): variable for variable in known if variable.startswith(section)}
    guess = nearest(name.removeprefix(section), rests, _NEAR)
    return None if guess is None else rests[guess]


def without_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for a process that reads the effective configuration from a file."""
    return {name: text for name, text in environ.items() if not _KEY.match(name)}


def path_of(variable: str, models: Models, open_section: str | None = None) -> KeyPath:
    """Return the key that a variable sets. Raises ConfigurationError that names the nearest variable.

    `open_section` is a section with unknown keys: any key is accepted, in lower case.
    """
    paths = {variable_of(path): path for path in all_paths(models)}
    if variable in paths:
        return paths[variable]
    if open_section is not None and variable.startswith(f"{variable_of((open_section,))}__"):
        return (open_section, *(part.lower() for part in variable.split("__")[1:]))
    raise ConfigurationError(
        f"the environment variable {variable} sets no key of the configuration; the nearest that does is "
        f"{nearest(variable, paths, cutoff=0.0)}"
    )
