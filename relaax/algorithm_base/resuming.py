"""Enforce whether a run may be resumed with another configuration, as declared at the keys.

An author writes `Fixed[int]` or `Free[float]` as the type of a key; what says neither is fixed (see
`relaax.configuration.resuming`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relaax.algorithm_base.config import ConfigBase
from relaax.configuration import Fixed, Free, KeyPath, Resume, redacted, resume_rules

__all__ = ["Changed", "Fixed", "Free", "changed_keys"]


@dataclass(frozen=True, slots=True)
class Changed:
    """A fixed key with two values. `key` is its path, `there` the value in the checkpoint, `here` the present one."""

    key: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.key} is {_shown(self.there)} in the checkpoint, {_shown(self.here)} in the configuration"


def changed_keys(there: Mapping[str, Any], config: ConfigBase) -> list[Changed]:
    """Every fixed key of `config` that has another value in `there`, the configuration in a checkpoint's fingerprint.

    A key that the checkpoint does not have, because its version had none, is compared by its default. What the
    checkpoint has and `config` has no more is not compared.
    """
    # Secrets are not in the checkpoint. Both sides hide them, so that they are not compared.
    here = redacted(config.model_dump(mode="json", by_alias=True))
    there = redacted(there)
    defaults = redacted(_defaults(type(config), config))
    changed = []
    for path, rule in resume_rules(type(config)):
        now = _at(here, path)
        before = _at(there, path, _at(defaults, path, now))
        if rule is Resume.FIXED and before != now:
            changed.append(Changed(".".join(("algorithm", *path)), before, now))
    return changed


def _defaults(model: type[ConfigBase], config: ConfigBase) -> dict[str, Any]:
    """Return the configuration that has only what has no default from `config`."""
    needed = {name: getattr(config, name) for name, field in model.model_fields.items() if field.is_required()}
    return model.model_construct(**needed).model_dump(mode="json", by_alias=True, warnings=False)


def _at(configuration: Any, path: KeyPath, otherwise: Any = None) -> Any:
    for key in path:
        if not isinstance(configuration, Mapping) or key not in configuration:
            return otherwise
        configuration = configuration[key]
    return configuration


def _shown(value: Any, limit: int = 200) -> str:
    text = json.dumps(value)
    return text if len(text) <= limit else f"{text[:limit]}..."
