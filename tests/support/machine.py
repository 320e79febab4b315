"""What families of environments need of a machine beside Python packages."""

from __future__ import annotations

import ctypes.util
import shutil

import pytest

from environments.MiniWoB.browser import BROWSERS, MISSING


def lack_of(family: str) -> str | None:
    """What this machine lacks for a family, for a test that is skipped; None if it has everything."""
    if family == "MiniWoB" and not (shutil.which("chromedriver") and any(map(shutil.which, BROWSERS))):
        return f"no chromium with its chromedriver: {MISSING}"
    if family == "MiniWorld" and not all(map(ctypes.util.find_library, ("EGL", "GL", "GLU"))):
        return "no EGL, GL and GLU to draw with: apt-get install libegl1 libgl1-mesa-dri libglu1-mesa"
    return None


def require(family: str) -> None:
    """Skip the test if this machine lacks something for a family."""
    reason = lack_of(family)
    if reason:
        pytest.skip(reason)
