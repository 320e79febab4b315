"""Compare configurations: of a worker with the parameter server's, and of a checkpoint with the present one."""

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
    """Canonical JSON of algorithm, configuration and spaces: the same text if they are the same.

    Observations may exceed their bounds, and clients in other languages often announce none: they are left out.
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
    """Return a space in the form of `space_to_dict`, without the bounds of its boxes, however deep they lie."""
    if isinstance(space, Mapping):
        return {key: without_bounds(value) for key, value in space.items() if key not in ("low", "high")}
    return [without_bounds(part) for part in space] if isinstance(space, list) else space


def parse_fingerprint(text: str) -> tuple[dict[str, Any], Space, Space]:
    """Return the description as a dict, the observation space without bounds, the action space. Raises ValueError."""
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
    """Return the first difference, as `key: X at the worker, Y at the parameter server`; None if there is none.

    `at_theirs`, `at_ours`: the words for where each is from.
    """
    found = _difference(json.loads(theirs), json.loads(ours), "")
    if found is None:
        return None
    path, there, here = found
    return f"{path}: {there!r} {at_theirs}, {here!r} {at_ours}"


class _Words(str):
    """Text that messages show without quotes."""

    def __repr__(self) -> str:
        return str(self)


def space_text(description: Any) -> str:
    """Return how a space that a fingerprint describes is written, or the description if it describes none."""
    try:
        return str(space_from_dict(description))
    except (ValueError, TypeError):  # of another version, or damaged
        return json.dumps(description)


def _difference(theirs: Any, ours: Any, path: str) -> tuple[str, Any, Any] | None:
    """Return the path of the key, and its two values; a space is one value."""
    if path in SPACES and theirs != ours:
        return path, _Words(space_text(theirs)), _Words(space_text(ours))
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        for key in sorted(set(theirs) | set(ours)):
            found = _difference(theirs.get(key), ours.get(key), f"{path}.{key}" if path else str(key))
            if found:
                return found
        return None
    return None if theirs == ours else (path, theirs, ours)


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
