"""Load a policy from a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from relaax.algorithm_base import Algorithm, ConfigBase, load_algorithm, parse_fingerprint
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError
from relaax.configuration.secrets import HIDDEN
from relaax.libraries import explained
from relaax.policy.file import PolicyError, read
from relaax.policy.policy import Policy

_GREEDY = "greedy_exploit"


def load(file: Path | str, *, algorithm: Path | str | None = None, greedy: bool | None = None, seed: int = 0) -> Policy:
    """Load the policy of a file that `relaax checkpoints export` wrote.

    `algorithm`: the path of the algorithm's directory or file, unless it comes with RELAAX. Its code is run, so it is
    never taken from the file. `greedy`: take the most probable action, or the mean of a Gaussian; if False, sample
    actions with `seed`: the same observations then get the same actions. By default, the run's configuration for
    exploit mode applies.

    Raises PolicyError, and ModuleNotFoundError if the algorithm needs a library that is not installed.
    """
    found = read(file)
    try:
        described, *spaces = parse_fingerprint(json.dumps(found.description.fingerprint))
        name, keys = str(described["algorithm"]), dict(described["configuration"])
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{file} has no valid description: {error}") from None
    loaded = _algorithm(name, algorithm, file)
    config = _config(loaded, keys, greedy)
    refused = loaded.refusal(config, spaces[0], spaces[1])
    if refused is not None:
        raise PolicyError(f"{file}: {refused.sentence}")
    return Policy(found, loaded, config, (spaces[0], spaces[1]), seed)


def _algorithm(name: str, path: Path | str | None, file: Path | str) -> Algorithm:
    """Load an algorithm, by name only if it is bundled: a file must not choose which code is run."""
    if path is None and name not in bundled_names("algorithms"):
        raise PolicyError(
            f"{file} uses the algorithm {name!r}, which does not come with RELAAX: give its path, as in "
            f"load({str(file)!r}, algorithm='path/to/{name}')"
        )
    try:
        with explained("policy"):
            loaded = load_algorithm(
                name if path is None else str(path), bundled_folder("algorithms") if path is None else Path.cwd()
            )
    except ConfigurationError as error:
        raise PolicyError(str(error)) from error
    if loaded.name != name:
        raise PolicyError(f"{file} uses the algorithm {name!r}, not {loaded.name!r} from {loaded.source}")
    return loaded


def _config(algorithm: Algorithm, keys: dict[str, Any], greedy: bool | None) -> ConfigBase:
    if greedy is not None and _GREEDY in algorithm.Config.model_fields:
        keys[_GREEDY] = greedy
    elif greedy is False:
        raise PolicyError(f"the algorithm {algorithm.name} has no key {_GREEDY}: its exploit mode cannot be changed")
    known = {key: value for key, value in keys.items() if value != HIDDEN}
    try:
        return algorithm.configure({**known, "path": str(algorithm.source)})
    except ConfigurationError as error:
        raise PolicyError(
            f"the algorithm {algorithm.name} has another version than the one that was trained: {error}"
        ) from error
