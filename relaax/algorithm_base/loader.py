"""Find an algorithm by path or name, and import it."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import logging
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from relaax.algorithm_base.agent import AgentBase
from relaax.algorithm_base.config import ConfigBase, size_mismatch
from relaax.algorithm_base.error_place import place_of, reason_of
from relaax.algorithm_base.learner import LearnerBase
from relaax.algorithm_base.parameter_server import ParameterServerBase
from relaax.algorithm_base.replay_tables import ReplayBase
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError, nearest, validate_section
from relaax.configuration.suggestions import nearest_file
from relaax.libraries import lazy_exports as lazy_exports
from relaax.libraries import missing
from relaax.rlx import Space

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpacesRefusal:
    """Why spaces are refused, in one sentence. `supported`: by the algorithm, though not by this configuration."""

    sentence: str
    supported: bool


EXPORTS: dict[str, type] = {"Config": ConfigBase, "Agent": AgentBase, "ParameterServer": ParameterServerBase}
"""What an algorithm's directory or file exports: names, and what each is a subclass of."""
REPLAY_EXPORTS: dict[str, type] = {"Replay": ReplayBase, "Learner": LearnerBase}
"""What it exports besides if it has a replay memory: both."""


class Algorithm:
    """An algorithm: its name, where it is, and what it exports, each of which is imported when it is first used."""

    def __init__(self, name: str, source: Path, module: Any) -> None:
        """`module` has the names of `EXPORTS` as attributes."""
        self.name = name
        self.source = source
        self._module = module

    @cached_property
    def Config(self) -> type[ConfigBase]:  # noqa: N802 - as the algorithm calls it
        """The keys of its section. This and the next two raise ConfigurationError if there is none."""
        return cast(type[ConfigBase], self._export("Config"))

    @cached_property
    def Agent(self) -> type[AgentBase]:  # noqa: N802
        """What acts, in a worker."""
        return cast(type[AgentBase], self._export("Agent"))

    @cached_property
    def ParameterServer(self) -> type[ParameterServerBase]:  # noqa: N802
        """What the parameter server is told about the model."""
        return cast(type[ParameterServerBase], self._export("ParameterServer"))

    @cached_property
    def Replay(self) -> type[ReplayBase] | None:  # noqa: N802
        """What replay servers are told about the memory; None if the algorithm has none."""
        return cast(type[ReplayBase], self._export("Replay")) if self._has_replay else None

    @cached_property
    def Learner(self) -> type[LearnerBase] | None:  # noqa: N802
        """What learns from the memory, in a learner or a worker; None if the algorithm has none."""
        return cast(type[LearnerBase], self._export("Learner")) if self._has_replay else None

    @property
    def _has_replay(self) -> bool:
        with _importing(self.source):
            values = [(getattr(self._module, name, None), base) for name, base in REPLAY_EXPORTS.items()]
        return any(isinstance(value, type) and issubclass(value, base) for value, base in values)

    def check(self) -> None:
        """Import everything that is exported. Raises ConfigurationError if something is missing."""
        for name in (*EXPORTS, *(REPLAY_EXPORTS if self._has_replay else ())):
            self._export(name)

    def _export(self, name: str) -> type:
        with _importing(self.source):
            value = getattr(self._module, name, None)
        base = (EXPORTS | REPLAY_EXPORTS)[name]
        if not (isinstance(value, type) and issubclass(value, base)):
            raise ConfigurationError(
                f"{self.source}: an algorithm exports {name}, a subclass of relaax.algorithm_base.{base.__name__}"
            )
        return value

    def refusal(self, config: ConfigBase, observation_space: Space, action_space: Space) -> SpacesRefusal | None:
        """Return why a client with these spaces is not served; None if it is."""
        sentence = self.Agent.refusal(config, observation_space, action_space)
        if sentence is not None:
            return SpacesRefusal(sentence, supported=False)
        sentence = size_mismatch(config, observation_space, action_space)
        return None if sentence is None else SpacesRefusal(sentence, supported=True)

    def configure(self, section: Mapping[str, Any]) -> ConfigBase:
        """Return the `algorithm` section of a file as this algorithm's Config. Raises ConfigurationError."""
        return validate_section(self.Config, section, "algorithm")

    def prepare(self, config: ConfigBase, device: str) -> None:
        """Import what workers on `device` need beside the algorithm's own modules. Nothing of it is run."""
        self.Agent.prepare(config, device)


def find_algorithm(path: str, folder: Path) -> Path:
    """Return the directory or file meant by `path`.

    It is tried against `folder` (the configuration's), then the working directory, then the bundled algorithms by
    its last part. Raises ConfigurationError that lists where was looked, or if its name is none for a module.
    """
    name = Path(path).name.removesuffix(".py")
    candidates = [folder / path, Path.cwd() / path]
    if name:  # not for "." and "/"
        candidates.append(bundled_folder("algorithms") / name)
    for candidate in candidates:
        for found in (candidate, candidate.with_name(f"{candidate.name}.py") if name else candidate):
            if (found.is_dir() and (found / "__init__.py").is_file()) or (found.suffix == ".py" and found.is_file()):
                return _with_a_name(found.resolve())
    own = nearest_file(folder / path, ".py") if name else None
    known = bundled_names("algorithms")
    guess = str(Path(path).with_name(Path(own).name)) if own else nearest(name, known)
    known.sort(key=lambda one: difflib.SequenceMatcher(None, name, one).ratio(), reverse=True)
    looked = ", ".join(str(candidate) for candidate in dict.fromkeys(candidates))
    hint = f"did you mean {guess!r}? bundled" if guess and guess != name else "bundled"
    raise ConfigurationError(
        f"algorithm.path: no algorithm {path!r}; {hint} are {', '.join(known)} (looked for {looked})"
    )


def _with_a_name(source: Path) -> Path:
    if "." in source.stem or (source.is_dir() and source.suffix):
        raise ConfigurationError(f"algorithm.path: {source}: the name of an algorithm has no dot; please rename it")
    return source


def load_algorithm(path: str, folder: Path) -> Algorithm:
    """Import the algorithm meant by `path` (see `find_algorithm`).

    Raises ConfigurationError if it is not found, cannot be imported or exports too little.
    """
    algorithm = open_algorithm(path, folder)
    _log.info("algorithm %s from %s", algorithm.name, algorithm.source)
    algorithm.check()
    return algorithm


def load_config(path: str, folder: Path) -> type[ConfigBase]:
    """Import the Config of the algorithm meant by `path` (see `find_algorithm`), and what comes with it.

    Raises ConfigurationError as `load_algorithm` does.
    """
    return open_algorithm(path, folder).Config


def open_algorithm(path: str, folder: Path) -> Algorithm:
    """Return the algorithm meant by `path` (see `find_algorithm`); what it exports is imported as it is used.

    Raises ConfigurationError if it is not found or cannot be imported.
    """
    source = find_algorithm(path, folder)
    with _importing(source):
        module = importlib.import_module(f"{parent_package(source.parent)}.{source.stem}")
    return Algorithm(source.stem, source, module)


@contextlib.contextmanager
def _importing(source: Path) -> Iterator[None]:
    """Explain what the code of the algorithm at `source` raises while it is imported.

    If it raises an exception, or ends the process, ConfigurationError is raised that names file, line and error; the
    traceback is logged at level info. A library that an extra brings is for the caller to name: that error passes.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        if missing(error) is not None:
            raise
        _log.info("the algorithm %s cannot be imported", source, exc_info=error)
        place, reason = place_of(error, source), reason_of(error)
        raise ConfigurationError(f"{place}: the algorithm cannot be imported: {reason}") from error


def parent_package(folder: Path) -> str:
    """Return the name of a package whose modules are the algorithms of `folder`; make it if need be.

    Algorithms import each other relatively (`from ..da3c import ...`). The bundled ones stand behind those of the
    folder, so that a directory that was copied out alone still finds what it builds on.
    """
    name = "relaax_algorithms_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = list(dict.fromkeys([str(folder), str(bundled_folder("algorithms"))]))
        sys.modules[name] = package
    return name
