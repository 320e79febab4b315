"""How much memory the tables of a replay server may take."""

from __future__ import annotations

from relaax.configuration import ReplayServerSection
from relaax.replay.wire import MAX_MESSAGE

GIGABYTE = 1e9
SHARED_PART = 1 / 4
"""Bytes that callers of this host may share with a server, for each byte of its tables."""
LEAST_SHARED = MAX_MESSAGE
"""Bytes that they may share in any case: the longest sample."""


def table_bytes(settings: ReplayServerSection, available: float) -> float:
    """Return the bytes that tables of a shard may take, of so many that are available.

    If no key says how many, half of those for all shards together: they may be on one host, and start at the same time.
    """
    return available / (2 * max(settings.shards, 1)) if settings.memory is None else settings.memory * GIGABYTE


def shared_bytes(tables: float) -> float:
    """Return the bytes that callers of this host may share with a server whose tables may take `tables` bytes."""
    return max(tables * SHARED_PART, LEAST_SHARED)
