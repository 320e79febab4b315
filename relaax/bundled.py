"""Locations of the algorithms, environments, configurations and pages that come with RELAAX."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def bundled_folder(kind: str) -> Path:
    """Return the folder `kind`: algorithms, environments, config, docs or protocol.

    In a checkout it is next to the package, in a wheel inside it.
    """
    beside = _PACKAGE.parent / kind
    if beside.is_dir() and (_PACKAGE.parent / "pyproject.toml").is_file():
        return beside
    return _PACKAGE / kind


def bundled_names(kind: str, suffix: str = "") -> list[str]:
    """Return the names of bundled directories, or with a suffix (`.yaml`) of files, without it."""
    entries = sorted(bundled_folder(kind).glob(f"*{suffix}"))
    if suffix:
        return [entry.name.removesuffix(suffix) for entry in entries if entry.is_file()]
    return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(("_", "."))]
