"""Paths that begin with `~`, a home directory."""

from __future__ import annotations

import os
from pathlib import Path

from relaax.configuration.validation import ConfigurationError


class NoHome(ConfigurationError, ValueError):
    """A path names a home directory that is unknown: a container may have neither HOME nor an entry of the user."""


def with_home(path: str | Path, key: str = "") -> Path:
    """Replace `~` and `~USER` at the beginning. Raises NoHome, whose message begins with `key`; otherwise a folder
    called `~` would be made.
    """
    text = str(path)
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        user = text[1:].partition("/")[0]
        whose = f"of {user} is unknown" if user else "is unknown: set HOME"
        named = f"{key}: " if key else ""
        raise NoHome(f"{named}{text}: the home directory {whose}; or give an absolute path")
    return Path(expanded)
