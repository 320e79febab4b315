"""Lookup of environments by id, and of the packages that register ids."""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

import gymnasium
from gymnasium.envs import registration

from relaax.client import command
from relaax.client.program.families import nearest
from relaax.client.program.modules import error_text, find_object, import_module

MINATAR = "MinAtar/"
USAGE_ERRORS = (gymnasium.error.Error, ImportError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""Errors that mean unusable arguments or missing libraries: a retry does not help."""
_REGISTERING = threading.Lock()  # connections of one program find their environments in parallel


def find(name: str, register: str | None = None, imports: Sequence[str] = ()) -> registration.EnvSpec:
    """Return gymnasium's specification of an environment.

    `name`: an id, MODULE:ID to import a module first, or MODULE:CLASS, which need not be registered. `register`:
    MODULE:FUNCTION of a package that registers its ids in a call. `imports`: modules of packages that register their
    ids on import. Raises command.UsageError if no environment has this name.
    """
    module, _, identifier = name.rpartition(":")
    with _REGISTERING:
        if importlib.util.find_spec("ale_py") is not None:
            import ale_py

            gymnasium.register_envs(ale_py)
        elif name.startswith("ALE/") or "NoFrameskip-v" in name:
            raise command.UsageError("ale-py is not installed; pip install 'relaax[atari]'")
        if name.startswith(MINATAR):
            _call("minatar.gym:register_envs")
        before = set(gymnasium.registry)
        if register is not None:
            _call(register)
        for other in (*imports, *([module] if module else [])):
            import_module(other)
    try:
        namespace, short, version = registration.parse_env_id(identifier)
        if version is None and identifier not in gymnasium.registry:  # the newest, as in gymnasium.make
            version = registration.find_highest_version(namespace, short)
        return gymnasium.spec(registration.get_env_id(namespace, short, version))
    except (gymnasium.error.Error, ImportError) as error:
        found = getattr(sys.modules.get(module), identifier, None)
        if isinstance(found, type) and issubclass(found, gymnasium.Env):
            return registration.EnvSpec(identifier, f"{module}:{identifier}")
        known = set(gymnasium.registry) - before
        raise command.UsageError(_unknown(identifier, module or " and ".join(imports), sorted(known))) from error


@functools.cache  # a second call would make gymnasium warn of duplicate ids
def _call(text: str) -> None:
    function = find_object(text)
    try:
        function()
    except Exception as error:  # a package can raise any error
        raise command.UsageError(f"--register {text}: {error_text(error)}") from error


def _unknown(identifier: str, module: str, new: Sequence[str]) -> str:
    """Return the message for an unknown id. `new`: the ids that the user's packages registered."""
    sentence = f"gymnasium has no environment {identifier!r}"
    if new:
        return f"{sentence}; the registered ones are {', '.join(new[:12])}"
    if module:
        classes = _environment_classes(sys.modules.get(module))
        if classes:
            near = nearest(identifier, classes) or f"; it has {', '.join(classes)}"
            return f"{module} has no environment {identifier!r}{near}"
        return f"{sentence}, and importing {module} registers none: use --register {module}:FUNCTION"
    near = nearest(identifier, gymnasium.registry)
    package, dot, name = identifier.rpartition(".")
    if dot and _is_module(package):
        return f"{sentence}; did you mean {package}:{name}?"
    other = "for one of another package, write PACKAGE:ID, such as highway_env:highway-v0"
    return f"{sentence}{near}; for a class of yours, write MODULE:CLASS; {other}"


def _environment_classes(module: ModuleType | None) -> list[str]:
    """Return the names of the environment classes that a module or its package defines."""
    if module is None:
        return []
    package = module.__name__.partition(".")[0]
    classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
    return [
        name
        for name, value in classes.items()
        if issubclass(value, gymnasium.Env)
        and not issubclass(value, gymnasium.Wrapper)
        and value.__module__.partition(".")[0] == package
    ]


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # raised by a parent package
        return False
