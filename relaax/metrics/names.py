"""Valid metric names."""

from __future__ import annotations

import re

MAX_NAME_LENGTH = 160
"""The length of a client's metric name, 128, plus its prefix."""

CLIENTS = "client/"
"""The prefix of names that clients choose."""

_NAME = re.compile(r"[A-Za-z0-9_.-][A-Za-z0-9_./-]*")


def check_name(name: str) -> str:
    """Return `name` if RLX allows it: letters, digits and `_ . - /`, no slash first. Raises ValueError."""
    if len(name) > MAX_NAME_LENGTH or not _NAME.fullmatch(name):
        raise ValueError(
            f"{name[:MAX_NAME_LENGTH]!r} is not a metric name: use letters, digits, '_', '.', '-' and '/', no "
            f"slash first, at most {MAX_NAME_LENGTH} characters"
        )
    return name
