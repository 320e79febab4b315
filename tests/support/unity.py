"""The components for Unity, compiled with stand-ins of Unity's types, for Mono."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.client_languages import LANGUAGES, require

FOLDER = LANGUAGES["csharp"].folder
_SOURCES = ("src/*.cs", "unity/*.cs", "tests/UnityEngine.cs")


def compiled(out: Path, *files: str | Path) -> Path:
    """Compile the components and more files to a program for Mono. Skip the test if the compiler is missing."""
    require(LANGUAGES["csharp"])
    sources = [str(path) for pattern in _SOURCES for path in sorted(FOLDER.glob(pattern))]
    command = ["mcs", "-warnaserror", "-langversion:7.2", f"-out:{out}", *sources, *map(str, files)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
