"""Keys that come from environment variables: `RELAAX_ALGORITHM__ENTROPY_BETA=0.02`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from relaax.configuration.keys import KeyPath, Models, all_paths, nearest
from relaax.configuration.roles import ENVIRONMENTS_TOKEN, SECTIONS, WORKERS_TOKEN
from relaax.configuration.validation import ConfigurationError

_log = logging.getLogger(__name__)

PREFIX = "RELAAX_"
SECRETS = (ENVIRONMENTS_TOKEN, WORKERS_TOKEN)
"""Variables that are no keys: what must not stand in a file."""

_SECTIONS = [name.removeprefix("relaax-").replace("-", "_").upper() for name in (*SECTIONS, "algorithm")]
_KEY = re.compile(f"{PREFIX}(?:RELAAX_)?(?:{'|'.join(_SECTIONS)})__")
_NEAR = 0.8  # of 1: what Kubernetes makes of a Service's name, such as RELAAX_RLX_SERVER_PORT, stays below


def variable_of(path: KeyPath) -> str:
    """The name of the variable that sets a key."""
    section, *keys = path
    return PREFIX + "__".join([section.removeprefix("relaax-").replace("-", "_"), *keys]).upper()


def variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that set keys, or are meant to: with two underscores behind the name of a section."""
    return {name: text for name, text in environ.items() if _KEY.match(name)}


def warn_of_misspelt(environ: Mapping[str, str], models: Models) -> None:
    """Log a warning for each variable that sets nothing, and has nearly the name of one that does.

    Others that begin with RELAAX_ are none of ours: Kubernetes names variables after its Services.
    """
    known = [*SECRETS, *(variable_of(path) for path in all_paths(models))]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in SECRETS and not _KEY.match(name):
            guess = _meant(name, known)
            if guess is not None:
                _log.warning("the environment variable %s has no effect; did you mean %s?", name, guess)


def _meant(name: str, known: list[str]) -> str | None:
    """The variable that is nearly `name`. What all variables of a section begin with tells nothing."""
    section = next((f"{PREFIX}{section}_" for section in _SECTIONS if name.startswith(f"{PREFIX}{section}_")), PREFIX)
    rests = {variable.removeprefix(section).lstrip("_"): variable for variable in known if variable.startswith(section)}
    guess = nearest(name.removeprefix(section), rests, _NEAR)
    return None if guess is None else rests[guess]


def without_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process that is given the effective configuration in a file."""
    return {name: text for name, text in environ.items() if not _KEY.match(name)}


def path_of(variable: str, models: Models, open_section: str | None = None) -> KeyPath:
    """The key that a variable sets.

    `open_section` is one whose keys are not all known: what the models do not have is taken there, in lower case.
    Raises ConfigurationError that names the nearest variable.
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
