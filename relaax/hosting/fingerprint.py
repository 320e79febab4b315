"""Fingerprints of configurations, to compare a worker or a checkpoint with the parameter server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relaax.algorithm_base.config import ConfigBase
from relaax.configuration import KeyPath, Resume, redacted, resume_rules
from relaax.rlx import Space, space_from_dict, space_to_dict

SPACES = ("observation_space", "action_space")


def fingerprint(algorithm: str, config: ConfigBase, observation_space: Space, action_space: Space) -> str:
    """Return canonical JSON of algorithm, configuration and spaces: equal texts if these are equal.

    Bounds of observations are not included: observations may exceed them, and clients in other languages often do not
    announce them.
    """
    return json.dumps(
        {
            "algorithm": algorithm,
            "configuration": config.model_description(),
            "observation_space": without_bounds(space_to_dict(observation_space)),
            "action_space": space_to_dict(action_space),
        },
        sort_keys=True,
        separators=(",", ":"),
    )


def without_bounds(space: Any) -> Any:
    """Return a space in the form of `space_to_dict` without the bounds of its boxes, at any depth."""
    if isinstance(space, Mapping):
        return {key: without_bounds(value) for key, value in space.items() if key not in ("low", "high")}
    return [without_bounds(part) for part in space] if isinstance(space, list) else space


def parse_fingerprint(text: str) -> tuple[dict[str, Any], Space, Space]:
    """Return the description as a dict, the observation space without bounds, and the action space.

    Raises ValueError if `text` is not a fingerprint.
    """
    try:
        description = json.loads(text)
        return (
            description,
            space_from_dict(description["observation_space"]),
            space_from_dict(description["action_space"]),
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"not a fingerprint: {error!r}") from None


def first_difference(
    theirs: str, ours: str, at_theirs: str = "at the worker", at_ours: str = "at the parameter server"
) -> str | None:
    """Return the first difference, as `key: X at the worker, Y at the parameter server`; None if they are equal.

    `at_theirs`, `at_ours`: where each fingerprint is from, in words.
    """
    found = _difference(json.loads(theirs), json.loads(ours), "")
    if found is None:
        return None
    path, there, here = found
    return f"{path}: {there!r} {at_theirs}, {here!r} {at_ours}"


class _UnquotedText(str):
    """A string whose `repr` has no quotes."""

    def __repr__(self) -> str:
        return str(self)


def space_text(description: Any) -> str:
    """Return the text of the space in `description`. If it is not a space, return the description as JSON."""
    try:
        return str(space_from_dict(description))
    except (ValueError, TypeError):  # from another version, or damaged
        return json.dumps(description)


def _difference(theirs: Any, ours: Any, path: str) -> tuple[str, Any, Any] | None:
    """Return the path of the first key that differs, and its two values. A space is one value."""
    if path in SPACES and theirs != ours:
        return path, _UnquotedText(space_text(theirs)), _UnquotedText(space_text(ours))
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in sorted(set(theirs) | set(ours)):
            found = _difference(theirs.get(key), ours.get(key), f"{path}.{key}" if path else str(key))
            if found:
                return found
        return None
    return None if theirs == ours else (path, theirs, ours)


@dataclass(frozen=True, slots=True)
class ChangedKey:
    """A fixed key whose values differ. `key`: its path. `there`: in the checkpoint. `here`: in the configuration."""

    key: str
    there: Any
    here: Any

    def __str__(self) -> str:
        return f"{self.key} is {_shown(self.there)} in the checkpoint, {_shown(self.here)} in the configuration"


def changed_keys(there: Mapping[str, Any], config: ConfigBase) -> list[ChangedKey]:
    """Return the fixed keys whose values differ between `config` and `there`.

    `there` is the configuration in a checkpoint's fingerprint. If it lacks a key, the default of the key is compared:
    the version that saved the checkpoint did not have the key. Keys that `config` does not have are not compared.
    """
    # Checkpoints do not contain secrets. Redact both sides, so that they are not compared.
    here = redacted(config.model_dump(mode="json", by_alias=True))
    there = redacted(there)
    defaults = redacted(_defaults(type(config), config))
    changed = []
    for path, rule in resume_rules(type(config)):
        now = _at(here, path)
        before = _at(there, path, _at(defaults, path, now))
        if rule is Resume.FIXED and before != now:
            changed.append(ChangedKey(".".join(("algorithm", *path)), before, now))
    return changed


def _defaults(model: type[ConfigBase], config: ConfigBase) -> dict[str, Any]:
    """Return a configuration of defaults. Keys without a default have the values of `config`."""
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
