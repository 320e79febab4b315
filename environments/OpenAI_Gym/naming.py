"""Environments by their ids, and what else a user names: modules, and classes and functions in them."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs import registration

from relaax.client import command

MINATAR = "MinAtar/"
WRONG = (gymnasium.error.Error, ImportError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
"""What is raised for arguments that make no sense or a library that is not there. To try again would not help."""
_log = logging.getLogger(__name__)
_REGISTERING = threading.Lock()  # connections of one program find their environments side by side


def find(name: str, register: str | None = None) -> registration.EnvSpec:
    """Gymnasium's description of an environment.

    `name`: an id, or MODULE:ID to import a module first. `register`: MODULE:FUNCTION of a package that registers its
    ids by a call. Raises command.UsageError if there is none of this name.
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
        if module:
            imported(module)
    try:
        namespace, short, version = registration.parse_env_id(identifier)
        if version is None and identifier not in gymnasium.registry:  # the newest, as gymnasium.make does
            version = registration.find_highest_version(namespace, short)
        return gymnasium.spec(registration.get_env_id(namespace, short, version))
    except (gymnasium.error.Error, ImportError) as error:
        known = set(gymnasium.registry) - before
        raise command.UsageError(_unknown(identifier, module, sorted(known))) from error


def look_in(folders: Iterable[str]) -> None:
    """Let modules be found in these folders and in the working directory, before the installed ones."""
    for folder in reversed([*folders, os.getcwd()]):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def imported(module: str) -> ModuleType:
    """A module by its name. Raises command.UsageError, also for what goes wrong in it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise command.UsageError(f"cannot import {module}: {said(error)}") from error
        raise command.UsageError(
            f"there is no module {error.name!r}, neither installed nor in the working directory; it is also looked for"
            " beside the YAML file of `relaax run`, in the folders of --path, and in those of PYTHONPATH"
        ) from error
    except Exception as error:  # whatever a module does
        raise command.UsageError(f"cannot import {module}: {said(error)}") from error


def named(text: str) -> Any:
    """What MODULE:NAME stands for. Raises command.UsageError."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise command.UsageError(f"{text!r} is no MODULE:NAME, such as minatar.gym:register_envs")
    found = imported(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise command.UsageError(f"{module} has no {name!r}{nearest(part, dir(found))}")
        found = getattr(found, part)
    return found


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence that names the most similar word that is known; empty if none is similar."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; the nearest is {near[0]!r}" if near else ""


def said(error: BaseException) -> str:
    """What an error says, with its kind if that is no library's own sentence. The log has where, at level debug."""
    _log.debug("where this came from:", exc_info=error)
    if isinstance(error, gymnasium.error.Error | ImportError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} (--log-level debug shows where)"


@functools.cache  # a second time gymnasium would warn of ids that are there already
def _call(text: str) -> None:
    function = named(text)
    try:
        function()
    except Exception as error:  # whatever a package does
        raise command.UsageError(f"--register {text}: {said(error)}") from error


def _unknown(identifier: str, module: str, new: Sequence[str]) -> str:
    """The sentence for an id that is not there. `new`: the ids that the user's packages registered."""
    sentence = f"gymnasium has no environment {identifier!r}"
    if new:
        return f"{sentence}; those that were registered are {', '.join(new[:12])}"
    if module:
        return f"{sentence}, and importing {module} registers none: --register {module}:FUNCTION calls what does"
    near = nearest(identifier, gymnasium.registry)
    return f"{sentence}{near}; one of another package is written PACKAGE:ID, such as highway_env:highway-v0"
