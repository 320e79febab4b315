"""Descriptions of exceptions in an algorithm's code, with file and line."""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relaax.bundled import bundled_folder

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = ("site-packages", "dist-packages")


def place_of(error: BaseException, source: Path) -> str:
    """Return file and line of the innermost call in the directory of the algorithm at `source`.

    Without such a call, use the innermost call in a bundled algorithm. Without either, return `source`.
    """
    if isinstance(error, SyntaxError) and error.filename is not None:
        return _line(error.filename, error.lineno)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(Path(frame.filename), source.parent)]
    bundled = [frame for frame in frames if Path(frame.filename).is_relative_to(bundled_folder("algorithms"))]
    innermost = (own or bundled)[-1:]
    return _line(innermost[0].filename, innermost[0].lineno) if innermost else _shown(source)


def place_of_function(function: Callable[..., Any]) -> str:
    """Return file and line of a function or method written in Python."""
    code = inspect.unwrap(function).__code__
    return _line(code.co_filename, code.co_firstlineno)


def reason_of(error: BaseException) -> str:
    """Return type and message of an exception on one line."""
    return " ".join(traceback.format_exception_only(error)[-1].split())


def describe_error(error: BaseException, source: Path) -> str:
    """Return place, type and message of an exception on one line."""
    return f"{place_of(error, source)}: {reason_of(error)}"


def is_deliberate(error: BaseException) -> bool:
    """Return whether a `raise` statement raised the exception. If so, its message is written for users."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and (frames[-1].line or "").startswith("raise")


def _is_own(file: Path, folder: Path) -> bool:
    inside = file.is_relative_to(folder) and not any(part in _LIBRARIES for part in file.parts)
    return inside and not file.is_relative_to(_PACKAGE)


def _line(file: str, line: int | None) -> str:
    return f"{_shown(Path(file))}, line {line}"


def _shown(file: Path) -> str:
    """Return the path relative to the working directory, or the whole path if the file is not below it."""
    here = Path(os.getcwd())
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)
