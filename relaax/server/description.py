"""The description that the servers of one training must agree on, safe to show."""

from __future__ import annotations

import json

from relaax.algorithm_base import ConfigBase
from relaax.configuration import redacted


def description(algorithm: str, config: ConfigBase) -> str:
    """Return canonical JSON of an algorithm and its configuration, as in a fingerprint but without secrets."""
    return json.dumps(
        {"algorithm": algorithm, "configuration": redacted(config.model_description())},
        sort_keys=True,
        separators=(",", ":"),
    )
