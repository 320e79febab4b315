"""The values that a study may try: the section `tune`, or defaults for the algorithm's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relaax.configuration import Configuration
from relaax.configuration.tune_section import CHOICES, INTEGERS, LOG, UNIFORM, SearchRange, TuneSection

DEFAULT = {
    "initial_learning_rate": SearchRange(LOG, (1e-5, 1e-2)),
    "entropy_beta": SearchRange(LOG, (1e-4, 1e-1)),
    "gae_lambda": SearchRange(UNIFORM, (0.7, 1.0)),
    "episode_len": SearchRange(CHOICES, (5, 10, 20, 40)),
    "update_interval": SearchRange(CHOICES, (5, 10, 20, 40)),
    "n_step": SearchRange(CHOICES, (1, 3, 5)),
    "rewards_gamma": SearchRange(CHOICES, (0.95, 0.98, 0.99, 0.995)),
}
"""The keys to try if the configuration has no section `tune`. Keys that the algorithm lacks are left out."""


def space_of(configuration: Configuration) -> dict[str, SearchRange]:
    """Return the values to try by SECTION.KEY."""
    section = configuration.sections["tune"]
    assert isinstance(section, TuneSection)
    if section.ranges:
        return section.ranges
    return {
        f"algorithm.{key}": values for key, values in DEFAULT.items() if hasattr(configuration.algorithm_config, key)
    }


def current_values(configuration: Configuration, space: Mapping[str, SearchRange]) -> dict[str, Any]:
    """Return the configuration's own values of the keys of `space`, without those outside their range."""
    document: Any = configuration.as_dict()
    found = {}
    for key, values in space.items():
        value = document
        for part in key.split("."):
            value = value.get(part, value.get(part.replace("-", "_"))) if isinstance(value, Mapping) else None
        if _contains(values, value):
            found[key] = value
    return found


def _contains(values: SearchRange, value: Any) -> bool:
    if values.kind == CHOICES:
        return value in values.values
    low, high = values.values
    return isinstance(value, int | float) and low <= value <= high


def suggest(trial: Any, space: Mapping[str, SearchRange]) -> dict[str, Any]:
    """Return a value for each key. `trial`: Optuna's."""
    chosen: dict[str, Any] = {}
    for key, values in space.items():
        if values.kind == CHOICES:
            chosen[key] = trial.suggest_categorical(key, values.values)
        elif values.kind == INTEGERS:
            chosen[key] = trial.suggest_int(key, *values.values)
        else:
            chosen[key] = trial.suggest_float(key, *values.values, log=values.kind == LOG)
    return chosen
