"""Names of metrics: the form in which a server stores them."""

from __future__ import annotations

import re

from relaax.rlx.errors import ErrorCode, ProtocolError

_OTHER = re.compile(r"[^A-Za-z0-9_./-]")


def normalize_name(name: str) -> str:
    """Return a metric's name as it is stored: `act latency on client` becomes `act_latency_on_client`.

    Each character except A-Z, a-z, 0-9 and `_ - . /` becomes `_`, and so does a slash at the beginning. Different names
    with the same result are one metric.
    """
    name = _OTHER.sub("_", name)
    return f"_{name[1:]}" if name.startswith("/") else name


def missing_metric_name(index: int) -> ProtocolError:
    """Return the error (INVALID_VALUE) for a scalar without a name."""
    return ProtocolError(ErrorCode.INVALID_VALUE, f"scalars[{index}].name is missing")
