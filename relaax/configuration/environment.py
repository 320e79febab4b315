"""Keys that come from environment variables: `RELAAX_ALGORITHM__ENTROPY_BETA=0.02`."""

from __future__ import annotations

from collections.abc import Mapping

from relaax.configuration.keys import KeyPath, Models, all_paths, nearest
from relaax.configuration.validation import ConfigurationError

PREFIX = "RELAAX_"
SECRETS = ("RELAAX_TOKEN",)
"""Variables that are no keys: what must not stand in a file."""


def variable_of(path: KeyPath) -> str:
    """The name of the variable that sets a key."""
    section, *keys = path
    return PREFIX + "__".join([section.removeprefix("relaax-").replace("-", "_"), *keys]).upper()


def variables_of(environ: Mapping[str, str]) -> dict[str, str]:
    """Those that set keys, or are meant to."""
    return {name: text for name, text in environ.items() if name.startswith(PREFIX) and name not in SECRETS}


def without_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a process that is given the effective configuration in a file."""
    return {name: text for name, text in environ.items() if name not in variables_of(environ)}


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
