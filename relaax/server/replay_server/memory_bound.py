"""How much memory the tables of a replay server may take."""

from __future__ import annotations

from relaax.configuration import ReplayServerSection

GIGABYTE = 1e9


def table_bytes(settings: ReplayServerSection, available: float) -> float:
    """Return the bytes that tables of a shard may take, of so many that are available.

    If no key says how many, half of those for all shards together: they may be on one host, and start at the same time.
    """
    return available / (2 * max(settings.shards, 1)) if settings.memory is None else settings.memory * GIGABYTE
