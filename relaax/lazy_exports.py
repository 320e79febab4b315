"""Packages whose exports are imported when they are first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Make the `__getattr__` of a package whose exports are imported when they are first used (PEP 562).

    `modules`: name -> module of the package, as in `.agent`. A process then imports only what it uses: `relaax run` the
    configuration of an algorithm, and completion the errors of `relaax.configuration`.
    """

    def export(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name], package), name)

    return export
