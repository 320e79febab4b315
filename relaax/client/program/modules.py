"""Modules, objects and constructor arguments that a command line names."""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import logging
import os
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from relaax.client.command import UsageError
from relaax.client.program.families import nearest

_log = logging.getLogger(__name__)
_LIBRARIES = ("gymnasium", "pettingzoo")


def add_search_path(folders: Iterable[str]) -> None:
    """Search these folders and the working directory for modules, before the installed ones."""
    for folder in reversed([*folders, os.getcwd()]):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def import_module(module: str) -> ModuleType:
    """Import a module by name. Raises UsageError, also for errors of the module's own code."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"cannot import {module}: {error_text(error)}") from error
        raise UsageError(
            f"there is no module {error.name!r}, neither installed nor in the working directory, the folder of `relaax"
            " run`'s YAML file, the folders of --path or those of PYTHONPATH"
        ) from error
    except Exception as error:  # a module can raise any error
        raise UsageError(f"cannot import {module}: {error_text(error)}") from error


def find_object(text: str, example: str = "minatar.gym:register_envs") -> Any:
    """Return the object that MODULE:NAME names. Raises UsageError if there is no such object."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise UsageError(f"{text!r} is not MODULE:NAME, such as {example}")
    found = import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{module} has no {name!r}{nearest(part, dir(found))}")
        found = getattr(found, part)
    return found


def error_text(error: BaseException) -> str:
    """Return the message of an error, and log its traceback at level debug.

    The message includes the type, unless it is an error of gymnasium, of PettingZoo or of an import.
    """
    _log.debug("traceback of the reported error:", exc_info=error)
    is_of_library = type(error).__module__.partition(".")[0] in _LIBRARIES
    if (is_of_library or isinstance(error, ImportError)) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} (--log-level debug shows where)"


def kwarg(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE for argparse. VALUE is read as JSON, otherwise as a Python literal, otherwise as text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as is_slippery=false")
    return name, literal(value)


def literal(text: str) -> Any:
    """Return the value of JSON, otherwise of a Python literal, otherwise the text."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError):
            pass
    return text
