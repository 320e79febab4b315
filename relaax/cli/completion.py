"""Completions for the shell. This module imports no slow library, because a user waits for each completion."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from relaax.bundled import bundled_configurations, bundled_names

_RUNS = Path("runs")


def configurations(incomplete: str) -> list[str]:
    """Return the bundled configurations and the YAML files that begin with `incomplete`."""
    files = (str(path) for path in Path().glob(f"{_literal(incomplete)}*.yaml")) if _is_relative(incomplete) else ()
    return _matching([*bundled_names("config", ".yaml"), *files], incomplete)


def algorithms(incomplete: str) -> list[str]:
    """Return the bundled algorithms."""
    return _matching(bundled_names("algorithms"), incomplete)


def environments(incomplete: str) -> list[str]:
    """Return the environments that bundled configurations train, in the form that `--environment` accepts."""
    return _matching((_environment_argument(one.environment, one.task) for one in bundled_configurations()), incomplete)


def runs(incomplete: str) -> list[str]:
    """Return the run directories in runs/."""
    return _matching((f"{path}" for path in _RUNS.glob("*") if path.is_dir()), incomplete)


def configurations_and_runs(incomplete: str) -> list[str]:
    """Return the matching configurations and run directories."""
    return [*configurations(incomplete), *runs(incomplete)]


def algorithms_and_configurations(incomplete: str) -> list[str]:
    """Return the matching algorithms and configurations."""
    return [*algorithms(incomplete), *configurations(incomplete)]


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _environment_argument(family: str, task: str) -> str:
    has_family = family == "OpenAI_Gym" or task.lower().startswith(family.lower())
    return task if has_family else f"{family}/{task}"


def _is_relative(incomplete: str) -> bool:
    return not incomplete.startswith(("/", "~"))


def _literal(text: str) -> str:
    """Return a glob pattern that matches only `text`."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)
