"""An algorithm's Config without the rest of the algorithm, which would import TensorFlow: seconds, half a gigabyte."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pydantic

from relaax.algorithm_base.config import ConfigBase
from relaax.algorithm_base.loader import find_algorithm, import_algorithm, parent_package
from relaax.bundled import bundled_folder

_PREFIX = "relaax_configs_"
_LIGHT = {
    "pydantic", "relaax.algorithm_base", "relaax.algorithm_base.resuming", "relaax.rlx", "numpy",
    *sys.stdlib_module_names,
}  # fmt: skip


class OpenConfig(ConfigBase):
    """The keys that every algorithm has, and any others."""

    model_config = pydantic.ConfigDict(extra="allow")


def config_class(path: str, folder: Path) -> type[ConfigBase]:
    """The Config of the algorithm meant by `path` (see `find_algorithm`), OpenConfig where it cannot be had alone.

    It can where the algorithm is a directory that takes Config from its module `config`, which imports nothing heavy.
    Raises ConfigurationError where there is no algorithm, or that module cannot be imported.
    """
    source = find_algorithm(path, folder)
    folders = [source.parent, bundled_folder("algorithms")]
    if not source.is_dir() or not _takes_config(source / "__init__.py") or not _is_light(source.name, folders):
        return OpenConfig
    parent = parent_package(source.parent, _PREFIX)
    if _HOLLOW not in sys.meta_path:
        sys.meta_path.insert(0, _HOLLOW)
    found = getattr(import_algorithm(f"{parent}.{source.name}.config", source), "Config", None)
    return found if isinstance(found, type) and issubclass(found, ConfigBase) else OpenConfig


class _Hollow(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the directories of algorithms as packages of which `__init__` is not run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parent, _, name = fullname.rpartition(".")
        if not parent.startswith(_PREFIX) or "." in parent:
            return None
        for folder in path or ():
            if (Path(folder) / name / "config.py").is_file():
                spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
                spec.submodule_search_locations = [str(Path(folder) / name)]
                return spec
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        pass


_HOLLOW = _Hollow()


def _imports(file: Path) -> list[ast.Import | ast.ImportFrom]:
    """Every import of a module; none where it cannot be read, which its real import will say."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def _takes_config(init: Path) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and (node.level, node.module) == (1, "config")
        and any(alias.name == "Config" and alias.asname in (None, "Config") for alias in node.names)
        for node in _imports(init)
    )


def _is_light(algorithm: str, folders: Sequence[Path]) -> bool:
    """Whether the module `config` of an algorithm imports nothing heavy, nor those of others that it builds on."""
    file = next((file for folder in folders if (file := folder / algorithm / "config.py").is_file()), None)
    nodes = _imports(file) if file else []
    return bool(nodes) and all(_is_light_import(node, folders) for node in nodes)


def _is_light_import(node: ast.Import | ast.ImportFrom, folders: Sequence[Path]) -> bool:
    if isinstance(node, ast.Import):
        return all(alias.name in _LIGHT or alias.name.partition(".")[0] in _LIGHT for alias in node.names)
    module = node.module or ""
    if node.level == 2 and module.endswith(".config"):
        return _is_light(module.removesuffix(".config"), folders)
    return node.level == 0 and (module in _LIGHT or module.partition(".")[0] in _LIGHT)
