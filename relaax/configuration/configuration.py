"""A checked configuration, assembled from a file, environment variables and the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pydantic

from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration.errors import nearest_file, unknown_configuration
from relaax.configuration.layers import PREFIX, Layers, path_of, text_of, value_of, variables_of, warn_of_misspelt
from relaax.configuration.lesson_sections import (
    CURRICULUM,
    OPPONENTS,
    PARAMETERS,
    CurriculumSection,
    EnvironmentParametersSection,
    OpponentsSection,
    curriculum_of,
)
from relaax.configuration.roles import SECTIONS, relaax_roles
from relaax.configuration.sections import (
    ClusterSection,
    LearnerSection,
    ParameterServerSection,
    ReplayServerSection,
    RlxServerSection,
    RunSection,
    TensorBoardSection,
)
from relaax.configuration.validation import (
    ConfigurationError,
    KeyPath,
    Section,
    nearest,
    normalized,
    unknown,
    validate_section,
)
from relaax.configuration.yaml_file import read_yaml
from relaax.lessons.curriculum import Curriculum

ALGORITHM = "algorithm"
COMMAND_LINE = "command line"
HERE = "${here}"
"""A placeholder at the beginning of a path in the servers' sections: the folder of the configuration file."""


ConfigOf = Callable[[str, Path], type[pydantic.BaseModel]]
"""Maps the path of an algorithm and the folder of the configuration to the algorithm's Config."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A checked configuration.

    `algorithm` is the section as given. `algorithm_config` is its Config; None if the algorithm was not loaded.
    `origins` maps keys to the sources of their values; other keys have their defaults.
    """

    sections: Mapping[str, Section]
    """The sections of the roles, by section name."""
    algorithm: Mapping[str, Any]
    folder: Path
    algorithm_config: pydantic.BaseModel | None = None
    origins: Mapping[KeyPath, str] = field(default_factory=dict, compare=False)

    @property
    def parameter_server(self) -> ParameterServerSection:
        """The section `relaax-parameter-server`."""
        return cast(ParameterServerSection, self.sections["relaax-parameter-server"])

    @property
    def replay_server(self) -> ReplayServerSection:
        """The section `relaax-replay-server`."""
        return cast(ReplayServerSection, self.sections["relaax-replay-server"])

    @property
    def rlx_server(self) -> RlxServerSection:
        """The section `relaax-rlx-server`."""
        return cast(RlxServerSection, self.sections["relaax-rlx-server"])

    @property
    def learner(self) -> LearnerSection:
        """The section `relaax-learner`."""
        return cast(LearnerSection, self.sections["relaax-learner"])

    @property
    def tensorboard(self) -> TensorBoardSection:
        """The section `relaax-tensorboard`."""
        return cast(TensorBoardSection, self.sections["relaax-tensorboard"])

    @property
    def cluster(self) -> ClusterSection:
        """The section `relaax-cluster`."""
        return cast(ClusterSection, self.sections["relaax-cluster"])

    @property
    def run(self) -> RunSection:
        """The section `relaax-run`."""
        return cast(RunSection, self.sections["relaax-run"])

    @property
    def opponents(self) -> OpponentsSection:
        """The section `opponents`."""
        return cast(OpponentsSection, self.sections[OPPONENTS])

    def curriculum(self) -> Curriculum | None:
        """Return the parameters of environments and their lessons, at the start; None without parameters.

        Raises ConfigurationError.
        """
        parameters = cast(EnvironmentParametersSection, self.sections[PARAMETERS])
        return curriculum_of(parameters, cast(CurriculumSection, self.sections[CURRICULUM]))

    def with_keys(self, keys: Mapping[str, Mapping[str, Any]], origin: str) -> Configuration:
        """Return a copy with other values for some keys, given by section; their origin is `origin`."""
        sections = {name: section.model_copy(update=keys.get(name)) for name, section in self.sections.items()}
        origins: dict[KeyPath, str] = {(name, key): origin for name, values in keys.items() for key in values}
        return replace(self, sections=sections, origins={**self.origins, **origins})

    @property
    def algorithm_path(self) -> str:
        """The path of the algorithm, as given. Raises ConfigurationError if it is missing."""
        path = self.algorithm.get("path")
        if not isinstance(path, str) or not path:
            raise ConfigurationError("algorithm.path: required: the name or the path of an algorithm, such as da3c")
        return path

    def given_algorithm_keys(self) -> dict[str, Any]:
        """Return the algorithm's keys that the command line or an environment variable sets, except its path."""
        given = {
            path[1]
            for path, origin in self.origins.items()
            if path[0] == ALGORITHM and (origin == COMMAND_LINE or origin.startswith(PREFIX))
        }
        return {key: value for key, value in self.as_dict()[ALGORITHM].items() if key in given - {"path"}}

    def as_dict(self) -> dict[str, Any]:
        """Return the effective configuration in a file's form, with the defaults of all loaded sections."""
        config = self.algorithm_config
        return {
            **{name: section.model_dump(by_alias=True) for name, section in self.sections.items()},
            ALGORITHM: dict(self.algorithm) if config is None else config.model_dump(mode="json", by_alias=True),
        }


def find_configuration(name: str) -> Path:
    """Return the path of a file or of a bundled configuration. Raises ConfigurationError.

    A name with a folder is only a path: it never finds a bundled configuration.
    """
    path = Path(name)
    if path.is_file():
        if path.suffix == ".py":
            raise ConfigurationError(f"{name} is a Python file, not a configuration; {_training_hint(path)}")
        return path
    if (path / "configuration.yaml").is_file():
        raise ConfigurationError(f"{name} is the directory of a run; the command that started it resumes it")
    known, short = bundled_names("config", ".yaml"), path.name.removesuffix(".yaml")
    if short not in known and (own := nearest_file(path, ".yaml")):
        raise ConfigurationError(f"no file {name}; did you mean your file {own!r}?")
    if name != path.name:
        guess = nearest(short, known, 0.75)
        bundled = f"; to use the bundled configuration, give its name alone: {guess}" if guess else ""
        raise ConfigurationError(f"there is no file at {name}{bundled}")
    if short in known:
        return bundled_folder("config") / f"{short}.yaml"
    raise ConfigurationError(f"no file {name} was found, and {unknown_configuration(name, known)}")


def _training_hint(program: Path) -> str:
    configuration = program.with_suffix(".yaml")
    if configuration.is_file():
        return f"did you mean {str(configuration)!r}?"
    return f"if it is an algorithm: relaax run --algorithm {program} --environment CartPole-v1"


def load_configuration(
    path: Path | str,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    config_of: ConfigOf | None = None,
) -> Configuration:
    """Read a file and apply the variables of `environ`, then the `overrides` of the command line.

    Overrides have the form `section.key=value`; later ones win. With `config_of`, the algorithm's section is checked
    too.

    Raises ConfigurationError, one line per problem.
    """
    path = Path(path)
    layers = Layers(_sections_of(read_yaml(path), str(path)), path.name)
    return _assembled(layers, path.resolve().parent, overrides, environ, config_of)


def assemble_configuration(
    document: Mapping[str, Any],
    origin: str,
    folder: Path,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    config_of: ConfigOf | None = None,
) -> Configuration:
    """Return the configuration of a document in a file's form, as `load_configuration` does.

    `origin`: the source of its values, for people. `folder`: the folder that its relative paths refer to.
    """
    return _assembled(Layers(_sections_of(document, origin), origin), folder, overrides, environ, config_of)


def _assembled(
    layers: Layers,
    folder: Path,
    overrides: Sequence[str],
    environ: Mapping[str, str] | None,
    config_of: ConfigOf | None,
) -> Configuration:
    given = [_parse_override(override) for override in overrides]
    variables = variables_of(environ or {})
    config = None if config_of is None else _config(config_of, layers, variables, given, folder)
    models = SECTIONS if config is None else SECTIONS | {ALGORITHM: config}
    warn_of_misspelt(environ or {}, models)
    for variable, text in variables.items():
        target = path_of(variable, models, ALGORITHM if config is None else None)
        layers.put(target, value_of(text, target, models, variable), variable)
    for target, text, override in given:
        layers.put(target, value_of(text, target, models, f"--set {override}"), COMMAND_LINE)
    for section in (role.section for role in relaax_roles()):
        layers.data[section] = {key: _resolve_here(value, folder) for key, value in layers.data[section].items()}
    checked: dict[str, Any] = {}
    wrong: list[str] = []
    for section, model in models.items():
        try:
            checked[section] = validate_section(model, layers.data[section], section, models)
        except ConfigurationError as error:
            wrong += [_name_variable(line, layers.origins) for line in str(error).splitlines()]
    if wrong:
        raise ConfigurationError("\n".join(wrong))
    configuration = Configuration(
        sections={name: checked[name] for name in SECTIONS},
        algorithm=layers.data[ALGORITHM],
        folder=folder,
        algorithm_config=checked.get(ALGORITHM),
        origins=layers.origins,
    )
    configuration.curriculum()
    return configuration


def _names() -> tuple[str, ...]:
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


def _parse_override(override: str) -> tuple[KeyPath, str, str]:
    """Return the key path of an override, its value as text, and the override.

    In `a.b.c=value`, a is the section; its prefix `relaax-` may be omitted.
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


def _resolve_here(value: Any, folder: Path) -> Any:
    """Return `value` with a leading `HERE` replaced by `folder`."""
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
    """Return the Config of the algorithm that the layers name; None if they name none, which is an error elsewhere."""
    place = (ALGORITHM, "path")
    texts = [text for target, text, _ in given if target == place] or [
        text for variable, text in variables.items() if variable == "RELAAX_ALGORITHM__PATH"
    ]
    path = text_of(texts[-1], "algorithm.path") if texts else layers.data[ALGORITHM].get("path")
    return config_of(path, folder) if isinstance(path, str) and path else None


def _name_variable(line: str, origins: Mapping[KeyPath, str]) -> str:
    """Add to an error the environment variable of the wrong value: the file may be right."""
    for path, origin in origins.items():
        if origin.startswith(PREFIX) and line.startswith(f"{'.'.join(path)}: "):
            return f"{line} (it comes from {origin})"
    return line
