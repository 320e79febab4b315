"""Lookup of PettingZoo's environments by id, and of others by module."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from relaax.client import command
from relaax.client.program.families import find_id, missing_library
from relaax.client.program.modules import add_search_path, error_text, find_object, import_module

PACKAGE = "pettingzoo"
_FUNCTIONS = ("parallel_env", "env")
"""Functions of PettingZoo's modules. The first is preferred: it needs fewer steps, as the agents act together."""


class Found(NamedTuple):
    """An environment's name, and the function that makes it."""

    name: str
    make: Callable[..., Any]


def find(name: str, folders: list[str]) -> Found:
    """Return the environment of an id, in any spelling, of MODULE, or of MODULE:NAME.

    Raises command.UsageError if there is no such environment.
    """
    name = re.sub(rf"^{PACKAGE}[:/]", "", name, flags=re.IGNORECASE)
    if ":" in name:
        add_search_path(folders)
        return Found(name, find_object(name, "my_game:parallel_env"))
    if "." in name:
        add_search_path(folders)
        module = import_module(name)
        make = next((made for function in _FUNCTIONS if callable(made := getattr(module, function, None))), None)
        if make is None:
            raise command.UsageError(f"{name} has neither parallel_env nor env: name a function or class, {name}:NAME")
        return Found(name.rpartition(".")[2], make)
    return _registered(name)


def _registered(name: str) -> Found:
    from pettingzoo.env_registry import registration

    ids = {one if "/" in name else one.rpartition("/")[2]: one for one in registration.aec_registry}
    found = ids[find_id(name, ids, "", "PettingZoo")]
    api = "parallel" if found in registration.parallel_registry else "aec"
    return Found(found.replace("-v", "_v"), lambda **kwargs: registration.make(api, found, **kwargs))


def make(found: Found, kwargs: Mapping[str, Any], render: bool) -> Any:
    """Return one environment. Raises command.UsageError if it cannot be made with these arguments."""
    options = {"render_mode": "rgb_array"} if render and "render_mode" not in kwargs else {}
    try:
        return found.make(**options, **kwargs)
    except Exception as error:  # an environment can raise any error
        reason = missing_library(error, PACKAGE) or error_text(error)
        raise command.UsageError(f"cannot make {found.name}: {reason}") from error
