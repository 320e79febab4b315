"""Requirements of tests: programs and libraries of the machine. A test is skipped if one is missing."""

from __future__ import annotations

import ctypes.util
import functools
import shutil
from pathlib import Path

import pytest

from environments.MiniWoB.browser import BROWSERS, MISSING

_IMAGE_TOOLS = "tests/support/install-image-tools"
AXE = Path.home() / ".cache/relaax-axe/axe.min.js"
"""axe-core, which checks pages for accessibility."""
_INSTALLED_BY = {
    "certutil": _IMAGE_TOOLS,
    "chromedriver": _IMAGE_TOOLS,
    "chromium": _IMAGE_TOOLS,
    "e2fsck": "apt-get install e2fsprogs",
    "git": "apt-get install git",
    "ip": "apt-get install iproute2",
    "losetup": "apt-get install mount",
    "mkfs.ext4": "apt-get install e2fsprogs",
    "mount": "apt-get install mount",
    "node": "apt-get install nodejs (18 or newer), or https://nodejs.org",
    "npm": "apt-get install npm",
    "perl": "apt-get install perl",
    "ss": "apt-get install iproute2",
    "umount": "apt-get install mount",
}


def need(*programs: str) -> None:
    """Skip the test if a program is not on the path. The reason names the command that installs it."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        installers = sorted({_INSTALLED_BY.get(program, _IMAGE_TOOLS) for program in missing})
        pytest.skip(f"this machine lacks {', '.join(missing)}: {'; '.join(installers)}")


def peer_python(name: str) -> Path:
    """Return the Python of a peer's virtual environment. Skip the test if it does not exist."""
    python = Path.home() / ".cache" / "relaax-peers" / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"this machine lacks {name}: tests/support/install-peers")
    return python


def need_axe() -> str:
    """Return the script of axe-core. Skip the test if this machine lacks it."""
    if not AXE.is_file():
        pytest.skip("this machine lacks axe-core: tests/support/install-axe")
    return AXE.read_text("utf-8")


@functools.cache
def missing_requirements(family: str) -> str | None:
    """Return what this machine lacks for a family, as the reason of a skipped test; None if nothing is missing."""
    if family == "MiniWoB" and not (shutil.which("chromedriver") and any(map(shutil.which, BROWSERS))):
        return f"no chromium with its chromedriver: {MISSING}"
    if family == "MiniWorld" and not all(map(ctypes.util.find_library, ("EGL", "GL", "GLU"))):
        return "no EGL, GL and GLU to draw with: apt-get install libegl1 libgl1-mesa-dri libglu1-mesa"
    if family == "TORCS":
        from support.torcs import lack_of_torcs

        return lack_of_torcs()
    if family == "Godot" and shutil.which("godot3-server") is None:
        return "this machine lacks godot3-server: tests/support/install-godot"
    return None


def require(family: str | None) -> None:
    """Skip the test if this machine lacks something for a family. None means no family."""
    reason = missing_requirements(family) if family is not None else None
    if reason:
        pytest.skip(reason)
