"""The option `--shard I/K` of servers that share something."""

from __future__ import annotations

import re

from relaax.configuration import ConfigurationError


def position_keys(shard: str | None, section: str) -> dict[str, int]:
    """Return the keys of a section for `--shard`. Raises ConfigurationError."""
    if shard is None:
        return {}
    found = re.fullmatch(r"(\d{1,9})/([1-9]\d{0,8})", shard)
    if found is None:
        raise ConfigurationError(f"--shard: {shard!r} is not I/K, such as 0/4 for the first of four shards")
    return {f"{section}.shard": int(found[1]), f"{section}.shards": int(found[2])}


def check_position(shard: int, shards: int, section: str) -> None:
    """Raise ConfigurationError if there is no such shard."""
    if shard >= shards:
        raise ConfigurationError(
            f"{section}.shard: is {shard}, and of {shards} the last one is {shards - 1}; they are counted from 0"
        )
