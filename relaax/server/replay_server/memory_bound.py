"""How much memory the tables of a replay server may take."""

from __future__ import annotations

from relaax.configuration import ReplayServerSection

GIGABYTE = 1e9


def table_bytes(settings: ReplayServerSection, available: float) -> float:
    """Return the bytes that tables may take, of so many that are available."""
    return available / 2 if settings.memory is None else settings.memory * GIGABYTE
