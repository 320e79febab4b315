"""One configuration file, read, checked and at hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration.sections import ParameterServerSection, RlxServerSection, RunSection
from relaax.configuration.validation import ConfigurationError, normalized, unknown, validate_section
from relaax.configuration.yaml_file import parse_yaml, read_yaml

_SECTIONS = {
    "relaax_parameter_server": "relaax-parameter-server",
    "relaax_rlx_server": "relaax-rlx-server",
    "relaax_run": "relaax-run",
    "algorithm": "algorithm",
}


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration file's content. `algorithm` is checked by the algorithm itself (`load_algorithm`)."""

    parameter_server: ParameterServerSection
    rlx_server: RlxServerSection
    run: RunSection
    algorithm: Mapping[str, Any]
    folder: Path

    @property
    def algorithm_path(self) -> str:
        """Where the algorithm is, as the file has it. Raises ConfigurationError where it says nothing."""
        path = self.algorithm.get("path")
        if not isinstance(path, str) or not path:
            raise ConfigurationError("algorithm.path: is needed: the name or the path of an algorithm, such as da3c")
        return path

    def as_dict(self) -> dict[str, Any]:
        """The effective configuration, defaults of the servers included, as a file would have it."""
        return {
            "relaax-parameter-server": self.parameter_server.model_dump(),
            "relaax-rlx-server": self.rlx_server.model_dump(),
            "relaax-run": self.run.model_dump(),
            "algorithm": dict(self.algorithm),
        }


def find_configuration(name: str) -> Path:
    """A path as it is, or the name of a bundled configuration. Raises ConfigurationError."""
    path = Path(name)
    if path.is_file():
        return path
    bundled = bundled_folder("config") / f"{path.name.removesuffix('.yaml')}.yaml"
    if bundled.is_file():
        return bundled
    raise ConfigurationError(f"no file {name}, and {unknown('configuration', name, bundled_names('config', '.yaml'))}")


def load_configuration(path: Path | str, overrides: Sequence[str] = ()) -> Configuration:
    """Read a file and apply `overrides` of the form `section.key=value`, later ones over earlier ones.

    Raises ConfigurationError.
    """
    path = Path(path)
    data = _sections_of(read_yaml(path), str(path))
    for override in overrides:
        _apply(data, override)
    return Configuration(
        parameter_server=validate_section(
            ParameterServerSection, data["relaax_parameter_server"], "relaax-parameter-server"
        ),
        rlx_server=validate_section(RlxServerSection, data["relaax_rlx_server"], "relaax-rlx-server"),
        run=validate_section(RunSection, data["relaax_run"], "relaax-run"),
        algorithm=data["algorithm"],
        folder=path.resolve().parent,
    )


def overrides_of(given: Mapping[str, Any]) -> list[str]:
    """Overrides for `load_configuration` from keys and values of a command line; None was not given."""
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def _sections_of(document: Any, name: str) -> dict[str, dict[str, Any]]:
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{name}: the sections {', '.join(_SECTIONS.values())} are expected")
    sections: dict[str, dict[str, Any]] = {key: {} for key in _SECTIONS}
    try:
        document = normalized(document)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    for key, value in document.items():
        if key not in sections:
            raise ConfigurationError(f"{name}: {unknown('section', key.replace('_', '-'), _SECTIONS.values())}")
        if value is not None and not isinstance(value, Mapping):
            raise ConfigurationError(f"{name}: {_SECTIONS[key]}: keys and values are expected, not {value!r}")
        sections[key] = dict(value or {})
    return sections


def _apply(data: dict[str, dict[str, Any]], override: str) -> None:
    """Set one key. Of `a.b.c=value`, a is the section; servers may be named without `relaax-`."""
    target, equals, text = override.partition("=")
    parts = [part.replace("-", "_") for part in target.strip().split(".")]
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigurationError(f"--set {override}: SECTION.KEY=VALUE is expected, as in algorithm.entropy_beta=0.02")
    section = parts[0] if parts[0] in data else f"relaax_{parts[0]}"
    if section not in data:
        raise ConfigurationError(f"--set {override}: {unknown('section', parts[0], _SECTIONS.values())}")
    node = data[section]
    for part in parts[1:-1]:
        inner = node.get(part)
        node[part] = dict(inner) if isinstance(inner, Mapping) else {}
        node = node[part]
    node[parts[-1]] = parse_yaml(text, f"--set {override}")
