"""Collect metrics from the infos of gymnasium environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.client.scalars import Scalars, check_name
from relaax.rlx.messages import MAX_NUMBER

Reports = Callable[[dict[str, Any]], Mapping[str, float]] | Sequence[str]
"""Finds metrics in a step's infos, or names the entries of the infos that are metrics."""


def reporter(reports: Reports | None, scalars: Scalars | None) -> Callable[[dict[str, Any]], None]:
    """Return a function that notes in `scalars` the metrics that `reports` finds in a step's infos.

    Raises ValueError for names that cannot be metrics.
    """
    if reports is None:
        return lambda infos: None
    if isinstance(reports, str):
        raise ValueError(f"metrics is {reports!r}: give a list of names, or a function of the infos")
    find = reports if callable(reports) else _named([name for name in reports if check_name(name)])
    if scalars is None:
        return lambda infos: None

    def note(infos: dict[str, Any]) -> None:
        for name, value in find(infos).items():
            scalars.scalar(name, value)

    return note


def _named(names: Sequence[str]) -> Callable[[dict[str, Any]], Mapping[str, float]]:
    def find(infos: dict[str, Any]) -> dict[str, float]:
        found = {name: _values(infos, name) for name in names}
        return {name: float(values.mean()) for name, values in found.items() if len(values)}

    return find


def _values(infos: dict[str, Any], name: str) -> npt.NDArray[np.float64]:
    """Return the values of one entry that can be sent, of every environment that has it or whose episode just ended."""
    parts = []
    for source in (infos, infos.get("final_info", {})):
        if name in source:
            try:
                values = np.asarray(source[name], np.float64).reshape(-1)
            except (TypeError, ValueError):
                raise ValueError(
                    f"metric {name!r}: the environment says {source[name]!r}, which is no number"
                ) from None
            given = source.get(f"_{name}")  # which environments of a vector said it
            parts.append(values if given is None else values[np.asarray(given, np.bool_).reshape(-1)])
    values = np.concatenate(parts) if parts else np.zeros(0)
    return values[np.abs(values) <= MAX_NUMBER]
