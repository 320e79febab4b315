"""Logs of the servers: one line each, to stderr."""

from __future__ import annotations

import logging
import sys


def configure_logging(level: str) -> None:
    """Send messages of `level` and above to stderr."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format="%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s",
        force=True,
    )
