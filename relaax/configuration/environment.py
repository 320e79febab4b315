"""Configuration keys from environment variables: `RELAAX_ALGORITHM__ENTROPY_BETA=0.02`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from relaax.configuration.keys import KeyPath, Models, all_paths, nearest
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, REPLAY_TOKEN, SECTIONS, WORKERS_TOKEN
from relaax.configuration.validation import ConfigurationError

_log = logging.getLogger(__name__)

PREFIX = "RELAAX_"
SECRETS = (ENVIRONMENTS_TOKEN, WORKERS_TOKEN, REPLAY_TOKEN)
"""Variables for secrets: not keys, because they must not be in a file."""

_SECTIONS = [name.removeprefix("relaax-").replace("-", "_").upper() for name in (*SECTIONS, "algorithm")]
_KEY = re.compile(f"{PREFIX}(?:RELAAX_)?(?:{'|'.join(_SECTIONS)})__")
_NEAR = 0.8  # of 1: variables that Kubernetes derives from Services, such as RELAAX_RLX_SERVER_PORT, score lower


def variable_of(path: KeyPath) -> str:
    """Return the name of the variable that sets a key."""
    section, *keys = path
    return PREFIX + "__".join([section.removeprefix("relaax-").replace("-", "_"), *keys]).upper()


def variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that set keys or are meant to: those with two underscores after a section's name."""
    return {name: text for name, text in environ.items() if _KEY.match(name)}


def warn_of_misspelt(environ: Mapping[str, str], models: Models) -> None:
    """Log a warning for each variable that sets nothing but has nearly the name of one that does.

    Ignore other variables that begin with RELAAX_: Kubernetes names variables after its Services.
    """
    known = [*SECRETS, *(variable_of(path) for path in all_paths(models))]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in SECRETS and not _KEY.match(name):
            guess = _meant(name, known)
            if guess is not None:
                _log.warning("the environment variable %s has no effect; did you mean %s?", name, guess)


def _meant(name: str, known: list[str]) -> str | None:
    """Return the known variable closest to `name`, or None. The prefix that a section's keys share is not compared."""
    section = next((f"{PREFIX}{section}_" for section in _SECTIONS if name.startswith(f"{PREFIX}{section}_")), PREFIX)
    rests = {variable.removeprefix(section).lstrip("_"): variable for variable in known if variable.startswith(section)}
    guess = nearest(name.removeprefix(section), rests, _NEAR)
    return None if guess is None else rests[guess]


def without_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` for a process that reads the effective configuration from a file."""
    return {name: text for name, text in environ.items() if not _KEY.match(name)}


def path_of(variable: str, models: Models, open_section: str | None = None) -> KeyPath:
    """Return the key that a variable sets. Raises ConfigurationError that names the nearest variable.

    `open_section` is a section whose keys are not all known: it accepts any key, in lower case.
    """
    paths = {variable_of(path): path for path in all_paths(models)}
    if variable in paths:
        return paths[variable]
    if open_section is not None and variable.startswith(f"{variable_of((open_section,))}__"):
        return (open_section, *(part.lower() for part in variable.split("__")[1:]))
    raise ConfigurationError(
        f"the environment variable {variable} sets no key of the configuration; the nearest that does is "
        f"{nearest(variable, paths, cutoff=0.0)}"
    )
