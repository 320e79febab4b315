"""Locations of the algorithms, environments, configurations and pages that come with RELAAX."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_FACT = re.compile(r"^  (path|environment|name): (.*?)(?: +#.*)?$", re.MULTILINE)
EXAMPLES = {
    "da3c": "da3c_gym_cartpole",
    "da3c_cont": "da3cc_gym_pendulum",
    "ppo": "ppo_gym_cartpole",
    "async_q": "async_q_gym_cartpole",
    "async_sarsa": "async_sarsa_gym_cartpole",
    "n_step_q": "n_step_q_gym_cartpole",
    "gorila": "gorila_gym_cartpole",
    "apex": "apex_gym_cartpole",
    "sac": "sac_gym_pendulum",
    "apex_dpg": "apex_dpg_gym_pendulum",
}
"""The configuration of a small task for each bundled algorithm, to start from."""


def bundled_folder(kind: str) -> Path:
    """Return the folder `kind`: algorithms, environments, config, docs or protocol.

    In a checkout, the folder is next to the package. In a wheel, it is inside the package.
    """
    beside = _PACKAGE.parent / kind
    if beside.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        return beside
    return _PACKAGE / kind


def bundled_names(kind: str, suffix: str = "") -> list[str]:
    """Return the names of bundled directories; with a `suffix` (`.yaml`), the names of files, without the suffix."""
    entries = sorted(bundled_folder(kind).glob(f"*{suffix}"))
    if suffix:
        return [entry.name.removesuffix(suffix) for entry in entries if entry.is_file()]
    return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(("_", "."))]


@dataclass(frozen=True, slots=True)
class BundledConfiguration:
    """Name, description, algorithm and environment of a bundled configuration.

    They are read from its text: completion must not load a YAML library.
    """

    name: str
    description: str
    algorithm: str
    environment: str
    task: str
    """The environment's name within its family."""


def bundled_configurations() -> Iterator[BundledConfiguration]:
    """Yield the bundled configurations by name."""
    for name in bundled_names("config", ".yaml"):
        text = (bundled_folder("config") / f"{name}.yaml").read_text(encoding="utf-8")
        facts = dict(_FACT.findall(text))
        yield BundledConfiguration(
            name,
            next(line for line in text.splitlines() if line.startswith("# ") and "$schema" not in line)[2:],
            Path(facts["path"]).name,
            facts["environment"],
            facts["name"],
        )


def algorithm_description(name: str) -> str:
    """Return the first line of a bundled algorithm's docstring."""
    return _first_line(bundled_folder("algorithms") / name / "__init__.py")


def family_description(name: str) -> str:
    """Return what an environment family runs, from the first line of its program's docstring."""
    line = _first_line(bundled_folder("environments") / name / "main.py")
    return line.removeprefix("Run ").partition(" against ")[0]


def family_extras(name: str) -> str:
    """Return the extras of an environment family, such as `gym,box2d`; empty if its page installs none."""
    page = (bundled_folder("environments") / name / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^pip install 'relaax\[(.*)\]'$", page, re.MULTILINE)
    return found[1] if found else ""


def _first_line(source: Path) -> str:
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]
