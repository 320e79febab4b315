"""Make the plan of a run without a configuration file, from the names of an algorithm and an environment.

The settings are from a bundled configuration of the same algorithm: for the same task, for another task of the same
family, or else for a small task. Settings that belong to the other task are removed.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax.bundled import (
    EXAMPLES,
    BundledConfiguration,
    bundled_configurations,
    bundled_folder,
    bundled_names,
)
from relaax.cli.run.plan import Plan, build_plan, check_managed_keys, find_program, in_run_name
from relaax.configuration import ConfigurationError, assemble_configuration, format_configuration, nearest, overrides_of
from relaax.configuration.yaml_file import read_yaml
from relaax.evaluation.scores import game_of
from relaax.files import write_whole
from relaax.hosting.loader import find_algorithm, load_config
from relaax.server.command.hardware import load_tensorflow_quietly

_ATARI, _GYMNASIUM, _PETTINGZOO = "ALE", "OpenAI_Gym", "PettingZoo"
_PLACES = ("bind", "parameter-server", "replay-server", "checkpoint-dir", "metrics-dir")
_TASK = ("name", "target-return", "target-evaluation")
"""Keys of relaax-run that belong to one task."""
_SMALL_TASK = ("network", "max_global_step", "normalize_rewards")
"""Keys of the algorithm that suit a small task only; their defaults follow the spaces."""
LEAST_STEPS_BETWEEN_EVALUATIONS = 20_000
_LEGACY_ATARI = re.compile(r"\w+-v[04]")
_OF_PETTINGZOO = re.compile(r"pettingzoo[:/](?=.)|(?=(butterfly|classic|sisl)/)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NamedEnvironment:
    """An environment that --environment names. `program`: its family, or the path of the user's own program."""

    program: str
    name: str
    arguments: Sequence[str] = ()

    @property
    def kind(self) -> str:
        """Return the name of a group of environments for which the same settings are suitable; empty if unknown."""
        if self.program != _GYMNASIUM:
            return self.program
        return self.name.rpartition("/")[0]

    def is_task_of(self, configuration: BundledConfiguration) -> bool:
        """Return whether the configuration trains this environment."""
        if self.program != configuration.environment:
            return False
        if self.program == _ATARI and (game := game_of(self.name)) is not None:
            return game == game_of(configuration.task)
        return self.name in (configuration.task, re.sub(r"-v\d+$", "", configuration.task))


def plan_without_file(
    algorithm: str, environment: str, overrides: Sequence[str], here: bool = True
) -> tuple[Plan, str]:
    """Return the plan, and a sentence about the origin of its settings. Raises ConfigurationError.

    `here`: as in `make_plan`.
    """
    source = find_algorithm(algorithm, Path.cwd())
    named = named_environment(environment)
    document: dict[str, Any] = {}
    origin, sentence = "default", "settings: defaults of the algorithm"
    if source.parent == bundled_folder("algorithms"):
        start, document = _starting_point(source.name, named)
        origin = f"{start.name}.yaml"
        same = named.is_task_of(start)
        sentence = f"settings of {start.name}{'' if same else ', without the settings of its own task'}"
    given = {
        "algorithm.path": algorithm,
        "run.environment": named.program,
        "run.name": named.name,
        "run.arguments": list(named.arguments) or None,
    }
    load_tensorflow_quietly()  # if the algorithm's module imports it
    everything = [*overrides_of(given), *overrides]
    configuration = assemble_configuration(document, origin, Path.cwd(), everything, os.environ, load_config)
    check_managed_keys(configuration, here)
    return build_plan(_run_name(source.stem, environment, named), "--environment", configuration), sentence


def write_file(plan: Plan, folder: Path) -> Path:
    """Write the configuration of a plan to NAME.yaml in `folder`; return its path. Raises ConfigurationError.

    The file has only the keys that were given. The paths of the algorithm and of the environment's modules are
    absolute, so the file works in any working directory.
    """
    configuration = plan.configuration
    given = {path[:2] for path in configuration.origins}
    document = {
        section: {key: value for key, value in keys.items() if (section, key) in given}
        for section, keys in configuration.as_dict().items()
    }
    document["algorithm"]["path"] = str(plan.algorithm)
    document["relaax-run"]["path"] = [str(found.absolute()) for found in dict.fromkeys([*plan.search_path, Path.cwd()])]
    file = folder / f"{plan.name}.yaml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, [format_configuration(document, configuration.origins).encode()], 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be written: {error.strerror}; --run-dir names another folder"
        ) from None
    return file


def named_environment(text: str) -> NamedEnvironment:
    """Return the environment of an id, FAMILY/NAME, or the command line of a program. Raises ConfigurationError."""
    try:
        first, *rest = shlex.split(text)
    except ValueError as error:  # an unbalanced quote, or an empty text
        reason = str(error) if text.strip() else "a name is missing"
        raise ConfigurationError(f"environment {text!r}: {reason}") from None
    options = rest if not rest or rest[0].startswith("-") else rest[1:]
    program = find_program(first)
    if program is None:
        if first.endswith(".py") or first.startswith((".", "/", "~")):
            raise ConfigurationError(f"environment {text!r}: there is no file {first}")
        if options != rest:
            if shutil.which(first):
                raise _not_python_error(text)
            guess = nearest(first, bundled_names("environments"))
            way_out = f"did you mean {guess!r}?" if guess else "name a Python program, as in 'my_world/main.py NAME'"
            raise ConfigurationError(f"environment {text!r}: there is no program {first!r}; {way_out}")
        family, name = _family_and_name(first)
        return NamedEnvironment(family, name, options)
    if program.suffix not in ("", ".py"):
        raise _not_python_error(text)
    bundled = program.is_relative_to(bundled_folder("environments"))
    if options != rest:
        name = rest[0]
    elif bundled:
        raise ConfigurationError(f"environment {text!r}: name one of its environments, as in {first}/NAME")
    else:
        name = program.parent.name if program.stem == "main" else program.stem
    return NamedEnvironment(program.parent.name if bundled else first, name, options)


def _not_python_error(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"environment {text!r}: only programs in Python can be started: start yours by hand, with the address of the "
        "RLX server, after relaax-parameter-server and relaax-rlx-server (`relaax docs environments`, One environment)"
    )


def _family_and_name(identifier: str) -> tuple[str, str]:
    """Return the bundled family of an environment's id or of FAMILY/NAME, and its name there."""
    if found := _OF_PETTINGZOO.match(identifier):
        return _PETTINGZOO, identifier[found.end() :]
    namespace, slash, name = identifier.partition("/")
    for family in bundled_names("environments"):
        if slash and namespace == family != _ATARI:
            return family, name
        by_package = not slash and family != _ATARI and identifier.lower().startswith(family.lower())
        if by_package or (slash and namespace.lower() == family.lower()):
            return family, identifier
    atari = "NoFrameskip" in identifier or "Deterministic" in identifier or _LEGACY_ATARI.fullmatch(identifier)
    if atari and game_of(identifier) is not None:
        return _ATARI, identifier
    return _GYMNASIUM, identifier


def _starting_point(algorithm: str, named: NamedEnvironment) -> tuple[BundledConfiguration, dict[str, Any]]:
    """Return the configuration whose settings suit the environment best, and the part of it to use."""
    # Pong's settings suit most games. Boxing and Breakout have their own settings.
    of_algorithm = sorted(
        (one for one in bundled_configurations() if one.algorithm == algorithm),
        key=lambda one: (one.name != EXAMPLES[algorithm], not one.name.endswith("_pong"), one.name),
    )
    for one in of_algorithm:
        if named.is_task_of(one):
            return one, _document(one, (), ())
    for one in of_algorithm:
        if named.kind and NamedEnvironment(one.environment, one.task).kind == named.kind:
            clicks = (
                ("arguments",) if named.program == "MiniWoB" else ()
            )  # the number of clicks, which belongs to the task
            return one, _document(one, (*_TASK, *clicks), ("subtract_mean_image",))
    evaluated = () if named.program in bundled_names("environments") else ("eval-every", "eval-episodes")
    document = _document(of_algorithm[0], (*_TASK, "arguments", *evaluated), _SMALL_TASK)
    document["algorithm"]["normalize_observations"] = True  # their scale is not known
    if (steps := document["relaax-run"].get("eval-every")) is not None:  # episodes may be longer than those of the task
        document["relaax-run"]["eval-every"] = max(steps, LEAST_STEPS_BETWEEN_EVALUATIONS)
    return of_algorithm[0], document


def _document(start: BundledConfiguration, of_run: Sequence[str], of_algorithm: Sequence[str]) -> dict[str, Any]:
    """Return a bundled configuration without addresses, folders and the given keys of two sections."""
    sections: Mapping[str, Any] = read_yaml(bundled_folder("config") / f"{start.name}.yaml")
    without = {"relaax-run": of_run, "algorithm": of_algorithm}
    return {
        section: {key: value for key, value in keys.items() if key not in (*_PLACES, *without.get(section, ()))}
        for section, keys in sections.items()
    }


def _run_name(algorithm: str, text: str, named: NamedEnvironment) -> str:
    """Return the name of the run and of its folder."""
    is_id = named.program in bundled_names("environments") and " " not in text.strip()
    task = text if is_id else named.name
    return f"{algorithm}_{in_run_name(task)}"
