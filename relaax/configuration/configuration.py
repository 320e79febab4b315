"""One configuration, put together from a file, environment variables and the command line, checked and at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pydantic

from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration.environment import path_of, variables_of, warn_of_misspelt
from relaax.configuration.keys import KeyPath, nearest, unknown
from relaax.configuration.layers import Layers, text_of, value_of
from relaax.configuration.roles import SECTIONS, servers
from relaax.configuration.sections import ParameterServerSection, RlxServerSection, RunSection
from relaax.configuration.validation import ConfigurationError, Section, normalized, validate_section
from relaax.configuration.yaml_file import read_yaml

ALGORITHM = "algorithm"
COMMAND_LINE = "command line"
HERE = "${here}"
"""At the beginning of a path in the servers' sections, the folder of the file."""


ConfigOf = Callable[[str, Path], type[pydantic.BaseModel]]
"""From the path of an algorithm and the folder of the configuration to the algorithm's Config."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration. `algorithm` is that section as it was given, `algorithm_config` as the algorithm has it.

    The latter is None if the configuration was read without its algorithm.
    `origins` says where each value came from; what is not in it is a default.
    """

    sections: Mapping[str, Section]
    """Of each role, by its name."""
    algorithm: Mapping[str, Any]
    folder: Path
    algorithm_config: pydantic.BaseModel | None = None
    origins: Mapping[KeyPath, str] = field(default_factory=dict, compare=False)

    @property
    def parameter_server(self) -> ParameterServerSection:
        """The section `relaax-parameter-server`."""
        return cast(ParameterServerSection, self.sections["relaax-parameter-server"])

    @property
    def rlx_server(self) -> RlxServerSection:
        """The section `relaax-rlx-server`."""
        return cast(RlxServerSection, self.sections["relaax-rlx-server"])

    @property
    def run(self) -> RunSection:
        """The section `relaax-run`."""
        return cast(RunSection, self.sections["relaax-run"])

    def with_keys(self, keys: Mapping[str, Mapping[str, Any]], origin: str) -> Configuration:
        """Return the same with other values of some keys, by their sections, which come from `origin`."""
        sections = {name: section.model_copy(update=keys.get(name)) for name, section in self.sections.items()}
        origins: dict[KeyPath, str] = {(name, key): origin for name, values in keys.items() for key in values}
        return replace(self, sections=sections, origins={**self.origins, **origins})

    @property
    def algorithm_path(self) -> str:
        """Where the algorithm is, as the file has it. Raises ConfigurationError where it says nothing."""
        path = self.algorithm.get("path")
        if not isinstance(path, str) or not path:
            raise ConfigurationError("algorithm.path: is needed: the name or the path of an algorithm, such as da3c")
        return path

    def as_dict(self) -> dict[str, Any]:
        """The effective configuration as a file would have it: with the defaults of the servers, and the algorithm's
        where they are known.
        """
        config = self.algorithm_config
        return {
            **{name: section.model_dump(by_alias=True) for name, section in self.sections.items()},
            ALGORITHM: dict(self.algorithm) if config is None else config.model_dump(mode="json", by_alias=True),
        }


def find_configuration(name: str) -> Path:
    """A path as it is, or the name of a bundled configuration. Raises ConfigurationError.

    Who names a folder means the file there: if it is not there, no bundled one takes its place.
    """
    path = Path(name)
    if path.is_file():
        return path
    known, short = bundled_names("config", ".yaml"), path.name.removesuffix(".yaml")
    if name != path.name:
        guess = nearest(short, known, 0.75)
        bundled = f"; for the bundled configuration give its name alone: {guess}" if guess else ""
        raise ConfigurationError(f"no file {name}{bundled}")
    if short in known:
        return bundled_folder("config") / f"{short}.yaml"
    raise ConfigurationError(f"no file {name}, and {unknown('configuration', name, known)}")


def load_configuration(
    path: Path | str,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    config_of: ConfigOf | None = None,
) -> Configuration:
    """Read a file, lay the variables of `environ` over it, and over these the `overrides` of the command line.

    Overrides have the form `section.key=value`, later ones over earlier ones. With `config_of` the algorithm's section
    is checked too.

    Raises ConfigurationError, one line for each thing that is wrong.
    """
    path = Path(path)
    folder = path.resolve().parent
    layers = Layers(_sections_of(read_yaml(path), str(path)), path.name)
    given = [_target(override) for override in overrides]
    variables = variables_of(environ or {})
    config = None if config_of is None else _config(config_of, layers, variables, given, folder)
    models = SECTIONS if config is None else SECTIONS | {ALGORITHM: config}
    warn_of_misspelt(environ or {}, models)
    for variable, text in variables.items():
        target = path_of(variable, models, ALGORITHM if config is None else None)
        layers.put(target, value_of(text, target, models, variable), variable)
    for target, text, override in given:
        layers.put(target, value_of(text, target, models, f"--set {override}"), COMMAND_LINE)
    for section in (role.section for role in servers()):
        layers.data[section] = {key: _placed(value, folder) for key, value in layers.data[section].items()}
    checked: dict[str, Any] = {}
    wrong: list[str] = []
    for section, model in models.items():
        try:
            checked[section] = validate_section(model, layers.data[section], section, models)
        except ConfigurationError as error:
            wrong += [_with_variable(line, layers.origins) for line in str(error).splitlines()]
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    return Configuration(
        sections={name: checked[name] for name in SECTIONS},
        algorithm=layers.data[ALGORITHM],
        folder=folder,
        algorithm_config=checked.get(ALGORITHM),
        origins=layers.origins,
    )


def overrides_of(given: Mapping[str, Any]) -> list[str]:
    """Overrides for `load_configuration` from keys and values of a command line; None was not given."""
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]


def _names() -> tuple[str, ...]:
    """Return the names of all sections."""
    return (*SECTIONS, ALGORITHM)


def _sections_of(document: Any, name: str) -> dict[str, dict[str, Any]]:
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{name}: the sections {', '.join(_names())} are expected")
    sections: dict[str, dict[str, Any]] = {section: {} for section in _names()}
    try:
        document = normalized(document)
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from None
    for key, value in document.items():
        section = key.replace("_", "-")
        if section not in sections:
            raise ConfigurationError(f"{name}: {unknown('section', section, _names())}")
        if value is not None and not isinstance(value, Mapping):
            raise ConfigurationError(f"{name}: {section}: keys and values are expected, not {value!r}")
        sections[section] = dict(value or {})
    return sections


def _target(override: str) -> tuple[KeyPath, str, str]:
    """The key that an override sets, the text behind the equals sign, the override.

    Of `a.b.c=value`, a is the section; servers may be named without `relaax-`.
    """
    target, equals, text = override.partition("=")
    first, *keys = [part.strip().lstrip("-") for part in target.split(".")]
    if not equals or not first or not keys or not all(keys):
        raise ConfigurationError(f"--set {override}: SECTION.KEY=VALUE is expected, as in algorithm.entropy_beta=0.02")
    named = first.replace("_", "-")
    section = named if named in _names() else f"relaax-{named}"
    if section not in _names():
        raise ConfigurationError(f"--set {override}: {unknown('section', first, _names())}")
    return (section, *(key.replace("-", "_") for key in keys)), text, override


def _placed(value: Any, folder: Path) -> Any:
    """A value in which `HERE` stands for `folder`."""
    if isinstance(value, str) and Path(value).parts[:1] == (HERE,):
        return str(folder.joinpath(*Path(value).parts[1:]))
    return value


def _config(
    config_of: ConfigOf,
    layers: Layers,
    variables: Mapping[str, str],
    given: Sequence[tuple[KeyPath, str, str]],
    folder: Path,
) -> type[pydantic.BaseModel] | None:
    """The Config of the algorithm that all layers together name. None where none is named, which is said elsewhere."""
    place = (ALGORITHM, "path")
    texts = [text for target, text, _ in given if target == place] or [
        text for variable, text in variables.items() if variable == "RELAAX_ALGORITHM__PATH"
    ]
    path = text_of(texts[-1], "algorithm.path") if texts else layers.data[ALGORITHM].get("path")
    return config_of(path, folder) if isinstance(path, str) and path else None


def _with_variable(line: str, origins: Mapping[KeyPath, str]) -> str:
    """A sentence about a value that came from an environment variable says so: the file may look right."""
    for path, origin in origins.items():
        if origin.startswith("RELAAX_") and line.startswith(f"{'.'.join(path)}: "):
            return f"{line} (it comes from {origin})"
    return line
