"""Finding an algorithm by path or name, and importing it."""

from __future__ import annotations

import hashlib
import importlib
import logging
import sys
import traceback
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relaax.algorithm_base.agent import AgentBase
from relaax.algorithm_base.config import ConfigBase, size_mismatch
from relaax.algorithm_base.parameter_server import ParameterServerBase
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError, nearest, validate_section
from relaax.extras import missing
from relaax.rlx import Space

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why spaces are refused, in one sentence. `supported`: by the algorithm, though not by this configuration."""

    sentence: str
    supported: bool


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm's public names: what its directory or file exports."""

    name: str
    source: Path
    Config: type[ConfigBase]
    Agent: type[AgentBase]
    ParameterServer: type[ParameterServerBase]

    def refusal(self, config: ConfigBase, observation_space: Space, action_space: Space) -> Refusal | None:
        """Why a client with these spaces is not served; None where it is."""
        sentence = self.Agent.refusal(config, observation_space, action_space)
        if sentence is not None:
            return Refusal(sentence, supported=False)
        sentence = size_mismatch(config, observation_space, action_space)
        return None if sentence is None else Refusal(sentence, supported=True)

    def configure(self, section: Mapping[str, Any]) -> ConfigBase:
        """The `algorithm` section of a file as this algorithm's Config. Raises ConfigurationError."""
        return validate_section(self.Config, section, "algorithm")

    def prepare(self, config: ConfigBase, device: str) -> None:
        """Import what workers on `device` need beside the algorithm's own modules. Nothing of it is run."""
        if config.worker_optimizer_spec() is not None:
            import relaax.algorithm_base.local_optimizer  # noqa: F401 - TensorFlow with it
        self.Agent.prepare(config, device)


def find_algorithm(path: str, folder: Path) -> Path:
    """The directory or file meant by `path`.

    It is tried against `folder` (the configuration's), then the working directory, then the bundled algorithms by
    its last part. Raises ConfigurationError that lists where was looked, or where its name is none for a module.
    """
    name = Path(path).name.removesuffix(".py")
    candidates = [folder / path, Path.cwd() / path]
    if name:  # not for "." and "/"
        candidates.append(bundled_folder("algorithms") / name)
    for candidate in candidates:
        for found in (candidate, candidate.with_name(f"{candidate.name}.py") if name else candidate):
            if (found.is_dir() and (found / "__init__.py").is_file()) or (found.suffix == ".py" and found.is_file()):
                return _with_a_name(found.resolve())
    guess = nearest(name, bundled_names("algorithms"))
    looked = ", ".join(str(candidate) for candidate in dict.fromkeys(candidates))
    hint = f"; did you mean {guess!r}?" if guess and guess != name else ""
    raise ConfigurationError(f"algorithm.path: no algorithm {path!r}{hint} (looked for {looked})")


def _with_a_name(source: Path) -> Path:
    if "." in source.stem or (source.is_dir() and source.suffix):
        raise ConfigurationError(f"algorithm.path: {source}: the name of an algorithm has no dot; please rename it")
    return source


def load_algorithm(path: str, folder: Path) -> Algorithm:
    """Import the algorithm meant by `path` (see `find_algorithm`).

    Raises ConfigurationError where it is not found, cannot be imported (see `import_algorithm`) or exports too little.
    """
    source = find_algorithm(path, folder)
    _log.info("algorithm %s from %s", source.stem, source)
    module = import_algorithm(f"{parent_package(source.parent)}.{source.stem}", source)
    exports = {"Config": ConfigBase, "Agent": AgentBase, "ParameterServer": ParameterServerBase}
    for name, base in exports.items():
        value = getattr(module, name, None)
        if not (isinstance(value, type) and issubclass(value, base)):
            raise ConfigurationError(
                f"{source}: an algorithm exports {name}, a subclass of relaax.algorithm_base.{base.__name__}"
            )
    return Algorithm(source.stem, source, module.Config, module.Agent, module.ParameterServer)


def import_algorithm(module: str, source: Path) -> types.ModuleType:
    """Import a module of the algorithm at `source`.

    Where its code raises an exception, or ends the process, the log has the traceback, and ConfigurationError is raised
    that names file, line and error. A library that an extra brings is for the caller to name: that error passes.
    """
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if missing(error) is not None:
            raise
        _log.error("the algorithm %s cannot be imported", source, exc_info=error)
        reason = " ".join(traceback.format_exception_only(error)[-1].split())
        raise ConfigurationError(f"{_place(error, source)}: the algorithm cannot be imported: {reason}") from error


def _place(error: BaseException, source: Path) -> str:
    """The file and line where the import of an algorithm failed: the innermost of the algorithms' own."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}"
    folders = (source.parent, bundled_folder("algorithms"))
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if any(Path(frame.filename).is_relative_to(folder) for folder in folders)
    ]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else str(source)


def parent_package(folder: Path, prefix: str = "relaax_algorithms_") -> str:
    """The name, `prefix` and digits, of a package whose modules are the algorithms of `folder`.

    Algorithms import each other relatively (`from ..da3c import ...`). The bundled ones stand behind those of the
    folder, so that a directory that was copied out alone still finds what it builds on.
    """
    name = prefix + hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = list(dict.fromkeys([str(folder), str(bundled_folder("algorithms"))]))
        sys.modules[name] = package
    return name
