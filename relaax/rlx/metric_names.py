"""Names of metrics: as people write them, and as they are kept."""

from __future__ import annotations

import re

_OTHER = re.compile(r"[^A-Za-z0-9_./-]")


def formed(name: str) -> str:
    """Return a metric's name in form: `act latency on client` is `act_latency_on_client`.

    Each character that is none of A-Z, a-z, 0-9 and `_ - . /` becomes `_`, and so does a slash at the beginning. Two
    names may come out as one, which is then one metric.
    """
    name = _OTHER.sub("_", name)
    return f"_{name[1:]}" if name.startswith("/") else name
