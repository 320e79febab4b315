"""Which names metrics may have."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 160
"""That of a client's metric, 128, and the prefix it gets."""

CLIENTS = "client/"
"""That prefix: whatever begins with it is a name that a client has chosen."""

_NAME = re.compile(r"[A-Za-z0-9_.-][A-Za-z0-9_./-]*")


def check_name(name: str) -> str:
    """`name`, where it is letters, digits and `_ . - /`, no slash first: all that RLX allows. Raises ValueError."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:MAX_NAME_LENGTH]!r} is no metric name: letters, digits, '_', '.', '-' and '/' are, no slash "
            f"first, up to {MAX_NAME_LENGTH} characters"
        )
    return name
