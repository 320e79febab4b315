"""From a file to a policy that acts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from relaax.algorithm_base import Algorithm, ConfigBase, load_algorithm, parse_fingerprint
from relaax.bundled import bundled_folder, bundled_names
from relaax.configuration import ConfigurationError
from relaax.configuration.secrets import HIDDEN
from relaax.extras import explained
from relaax.policy.file import PolicyError, read
from relaax.policy.policy import Policy

_GREEDY = "greedy_exploit"


def load(file: Path | str, *, algorithm: Path | str | None = None, greedy: bool | None = None, seed: int = 0) -> Policy:
    """The policy of a file that `relaax checkpoints export` wrote.

    `algorithm`: the path of the algorithm's directory or file, where it is none of those that come with RELAAX. Its
    code is run, so it is never taken from the file. `greedy`: take the most probable action, or the mean of a Gaussian;
    where it is False actions are drawn, by `seed`: the same observations then get the same actions. By default it is
    what the run's configuration says of exploit mode.

    Raises PolicyError, and ModuleNotFoundError where the algorithm needs a library that is not installed.
    """
    found = read(file)
    try:
        described, *spaces = parse_fingerprint(json.dumps(found.description.fingerprint))
        name, keys = str(described["algorithm"]), dict(described["configuration"])
    except (ValueError, KeyError, TypeError) as error:
        raise PolicyError(f"{file} does not say what it is: {error}") from None
    loaded = _algorithm(name, algorithm, file)
    config = _config(loaded, keys, greedy)
    refused = loaded.refusal(config, spaces[0], spaces[1])
    if refused is not None:
        raise PolicyError(f"{file}: {refused.sentence}")
    return Policy(found, loaded, config, (spaces[0], spaces[1]), seed)


def _algorithm(name: str, path: Path | str | None, file: Path | str) -> Algorithm:
    """By its name only where it is bundled: a file must not choose which code is run."""
    if path is None and name not in bundled_names("algorithms"):
        raise PolicyError(
            f"{file} is of the algorithm {name!r}, which does not come with RELAAX: give its path, as in "
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
        raise PolicyError(f"{file} is of the algorithm {name!r}, not of {loaded.name!r} from {loaded.source}")
    return loaded


def _config(algorithm: Algorithm, keys: dict[str, Any], greedy: bool | None) -> ConfigBase:
    if greedy is not None and _GREEDY in algorithm.Config.model_fields:
        keys[_GREEDY] = greedy
    elif greedy is False:
        raise PolicyError(f"the algorithm {algorithm.name} has no key {_GREEDY}: it acts in exploit mode as it does")
    known = {key: value for key, value in keys.items() if value != HIDDEN}
    try:
        return algorithm.configure({**known, "path": str(algorithm.source)})
    except ConfigurationError as error:
        raise PolicyError(
            f"the algorithm {algorithm.name} is another version than the one that learned: {error}"
        ) from error
