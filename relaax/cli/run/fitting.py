"""Check that an algorithm serves the environment's spaces, before anything is started."""

from __future__ import annotations

import math
import re

from relaax.algorithm_base.loader import open_algorithm
from relaax.bundled import bundled_folder, bundled_names
from relaax.cli.run.plan import Plan
from relaax.configuration import ConfigurationError
from relaax.rlx import Box, Discrete, MultiBinary, MultiDiscrete, Space

_SPACES = re.compile(r"observations (\w+\(.*\)), actions (\w+\(.*\))")
_BOX = re.compile(r"Box\((\w+), \[([\d, ]*)\](?:, (\S+)\.\.(\S+))?\)")
_DISCRETE = re.compile(r"Discrete\((\d+)(?:, start=(-?\d+))?\)")
_NUMBERS = re.compile(r"(MultiDiscrete|MultiBinary)\(\[([\d, ]+)\]\)")


def require_fitting(plan: Plan, said: str | None) -> None:
    """Raise ConfigurationError, with the bundled algorithms that can, if the plan's algorithm refuses these spaces.

    `said`: the spaces as the environment's program prints them; None, or spaces that are not single arrays, are left to
    the server.
    """
    spaces = spaces_of(said or "")
    config = plan.configuration.algorithm_config
    if spaces is None or config is None:
        return
    algorithm = open_algorithm(str(plan.algorithm), plan.configuration.folder)
    refusal = algorithm.refusal(config, *spaces)  # type: ignore[arg-type]
    if refusal is None:
        return
    able = [] if refusal.supported else [name for name in bundled_names("algorithms") if _is_able(name, spaces)]
    way_out = f"; bundled algorithms that can: {', '.join(able)}" if able else ""
    raise ConfigurationError(f"{plan.environment_name}: {refusal.sentence}{way_out}")


def spaces_of(said: str) -> tuple[Space, Space] | None:
    """Return the spaces that an environment's program says; None unless both are single arrays."""
    found = _SPACES.fullmatch(said)
    spaces = [_space_of(text) for text in found.groups()] if found else [None]
    return None if None in spaces else (spaces[0], spaces[1])  # type: ignore[return-value]


def _space_of(text: str) -> Space | None:
    if box := _BOX.fullmatch(text):
        bounds = (float(box[3]), float(box[4])) if box[3] else (-math.inf, math.inf)
        return Box(*bounds, _integers(box[2]), box[1])
    if discrete := _DISCRETE.fullmatch(text):
        return Discrete(int(discrete[1]), int(discrete[2] or 0))
    if numbers := _NUMBERS.fullmatch(text):
        return {"MultiDiscrete": MultiDiscrete, "MultiBinary": MultiBinary}[numbers[1]](_integers(numbers[2]))
    return None


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number.strip()]


def _is_able(name: str, spaces: tuple[Space, Space]) -> bool:
    algorithm = open_algorithm(name, bundled_folder("algorithms"))
    return algorithm.refusal(algorithm.Config(path=name), *spaces) is None
