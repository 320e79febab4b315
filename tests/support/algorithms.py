"""Algorithms whose classes are defined by a test."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from relaax.hosting.loader import Algorithm


def algorithm_of(name: str, source: Path, config: type, agent: type, parameter_server: type) -> Algorithm:
    exports = SimpleNamespace(Config=config, Agent=agent, ParameterServer=parameter_server)
    return Algorithm(name, source, exports)
