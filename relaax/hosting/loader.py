"""The loader of algorithms: it finds an algorithm by path or name, and imports it."""

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
from relaax.algorithm_base.declarations import ParameterServerBase, ReplayBase
from relaax.algorithm_base.learner import LearnerBase
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError, nearest, validate_section
from relaax.configuration.errors import nearest_file
from relaax.hosting.errors import place_of, reason_of
from relaax.libraries import lazy_exports as lazy_exports
from relaax.libraries import missing
from relaax.rlx import Space

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SpacesRefusal:
    """The reason why spaces are refused, in one sentence. `supported`: whether another configuration accepts them."""

    sentence: str
    supported: bool


EXPORTS: dict[str, type] = {"Config": ConfigBase, "Agent": AgentBase, "ParameterServer": ParameterServerBase}
"""Required exports of an algorithm's directory or file: names and base classes."""
REPLAY_EXPORTS: dict[str, type] = {"Replay": ReplayBase, "Learner": LearnerBase}
"""Further exports of an algorithm with a replay memory: both are required."""


class Algorithm:
    """An algorithm: its name, its source, and its exports, each imported on first use."""

    def __init__(self, name: str, source: Path, module: Any) -> None:
        """`source`: directory or file. `module`: a module with the names of `EXPORTS` as attributes."""
        self.name = name
        self.source = source
        self._module = module

    @cached_property
    def Config(self) -> type[ConfigBase]:  # noqa: N802 - the name of the export
        """The class of its configuration. This and the next two raise ConfigurationError if the export is missing."""
        return cast(type[ConfigBase], self._export("Config"))

    @cached_property
    def Agent(self) -> type[AgentBase]:  # noqa: N802
        """The class of its agents."""
        return cast(type[AgentBase], self._export("Agent"))

    @cached_property
    def ParameterServer(self) -> type[ParameterServerBase]:  # noqa: N802
        """The class that declares its model."""
        return cast(type[ParameterServerBase], self._export("ParameterServer"))

    @cached_property
    def Replay(self) -> type[ReplayBase] | None:  # noqa: N802
        """The class that declares its replay memory; None without one."""
        return cast(type[ReplayBase], self._export("Replay")) if self._has_replay else None

    @cached_property
    def Learner(self) -> type[LearnerBase] | None:  # noqa: N802
        """The class of its learners; None without a replay memory."""
        return cast(type[LearnerBase], self._export("Learner")) if self._has_replay else None

    @property
    def _has_replay(self) -> bool:
        with _importing(self.source):
            values = [(getattr(self._module, name, None), base) for name, base in REPLAY_EXPORTS.items()]
        return any(isinstance(value, type) and issubclass(value, base) for value, base in values)

    def check(self) -> None:
        """Import all exports. Raises ConfigurationError if one is missing."""
        for name in (*EXPORTS, *(REPLAY_EXPORTS if self._has_replay else ())):
            self._export(name)

    def _export(self, name: str) -> type:
        with _importing(self.source):
            value = getattr(self._module, name, None)
        base = (EXPORTS | REPLAY_EXPORTS)[name]
        if not (isinstance(value, type) and issubclass(value, base)):
            raise ConfigurationError(
                f"{self.source}: an algorithm must export {name}, a subclass of relaax.algorithm_base.{base.__name__}"
            )
        return value

    def refusal(self, config: ConfigBase, observation_space: Space, action_space: Space) -> SpacesRefusal | None:
        """Return why the spaces are refused; None if they are supported."""
        sentence = self.Agent.refusal(config, observation_space, action_space)
        if sentence is not None:
            return SpacesRefusal(sentence, supported=False)
        sentence = size_mismatch(config, observation_space, action_space)
        return None if sentence is None else SpacesRefusal(sentence, supported=True)

    def configure(self, section: Mapping[str, Any]) -> ConfigBase:
        """Return the `algorithm` section of a file as this algorithm's Config. Raises ConfigurationError if invalid."""
        return validate_section(self.Config, section, "algorithm")

    def learns_separately(self, config: ConfigBase) -> bool:
        """Return whether learners are processes of their own, so that workers only act."""
        return self.Replay is not None and not self.Replay.bundled(config)

    def prepare(self, config: ConfigBase, device: str) -> None:
        """Import the further modules that workers on `device` need, without running computations."""
        self.Agent.prepare(config, device)


def find_algorithm(path: str, folder: Path) -> Path:
    """Return the directory or file of the algorithm at `path`.

    `path` is relative to `folder` (the configuration's) or, if nothing is found there, to the working directory. If
    nothing is found there either, the last part of `path` is the name of a bundled algorithm. Raises ConfigurationError
    if no algorithm is found, or if its name is not valid for a module.
    """
    name = Path(path).name.removesuffix(".py")
    candidates = [folder / path, Path.cwd() / path]
    if name:  # not for "." and "/"
        candidates.append(bundled_folder("algorithms") / name)
    for candidate in candidates:
        for found in (candidate, candidate.with_name(f"{candidate.name}.py") if name else candidate):
            if (found.is_dir() and (found / "__init__.py").is_file()) or (found.suffix == ".py" and found.is_file()):
                return _check_name(found.resolve())
    own = nearest_file(folder / path, ".py") if name else None
    known = bundled_names("algorithms")
    guess = str(Path(path).with_name(Path(own).name)) if own else nearest(name, known)
    known.sort(key=lambda one: difflib.SequenceMatcher(None, name, one).ratio(), reverse=True)
    looked = ", ".join(str(candidate) for candidate in dict.fromkeys(candidates))
    hint = f"did you mean {guess!r}? " if guess and guess != name else ""
    raise ConfigurationError(
        f"algorithm.path: no algorithm {path!r}; {hint}bundled algorithms: {', '.join(known)} (looked for {looked})"
    )


def _check_name(source: Path) -> Path:
    if "." in source.stem or (source.is_dir() and source.suffix):
        raise ConfigurationError(
            f"algorithm.path: {source}: the name of an algorithm must not contain a dot; please rename it"
        )
    return source


def load_algorithm(path: str, folder: Path) -> Algorithm:
    """Import the algorithm at `path` (see `find_algorithm`) and all its exports.

    Raises ConfigurationError if it is not found, cannot be imported, or if an export is missing.
    """
    algorithm = open_algorithm(path, folder)
    _log.info("algorithm %s is loaded from %s", algorithm.name, algorithm.source)
    algorithm.check()
    return algorithm


def load_config(path: str, folder: Path) -> type[ConfigBase]:
    """Import the Config of the algorithm at `path` (see `find_algorithm`).

    Raises ConfigurationError as `load_algorithm` does.
    """
    return open_algorithm(path, folder).Config


def open_algorithm(path: str, folder: Path) -> Algorithm:
    """Return the algorithm at `path` (see `find_algorithm`). Its exports are imported on first use.

    Raises ConfigurationError if it is not found or cannot be imported.
    """
    source = find_algorithm(path, folder)
    with _importing(source):
        module = importlib.import_module(f"{parent_package(source.parent)}.{source.stem}")
    return Algorithm(source.stem, source, module)


@contextlib.contextmanager
def _importing(source: Path) -> Iterator[None]:
    """Convert exceptions of the algorithm at `source` during its import to ConfigurationError.

    If the code raises an exception or exits, the ConfigurationError names file, line and error, and the traceback is
    logged at level info. If a library of an extra is missing, the exception passes: the caller names the extra.
    """
    try:
        yield
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        if missing(error) is not None:
            raise
        _log.info("importing the algorithm %s failed", source, exc_info=error)
        place, reason = place_of(error, source), reason_of(error)
        raise ConfigurationError(f"{place}: the algorithm cannot be imported: {reason}") from error


def parent_package(folder: Path) -> str:
    """Return the name of a package whose modules are the algorithms of `folder`. Create the package if necessary.

    Algorithms import each other relatively (`from ..da3c import ...`). The package searches `folder` first, then the
    bundled algorithms, so that a copy of one bundled directory still finds the modules that it imports.
    """
    name = "relaax_algorithms_" + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = list(dict.fromkeys([str(folder), str(bundled_folder("algorithms"))]))
        sys.modules[name] = package
    return name
