"""What servers of one training must agree on, in a form that can be shown."""

from __future__ import annotations

import json

from relaax.algorithm_base import ConfigBase
from relaax.configuration import redacted


def description(algorithm: str, config: ConfigBase) -> str:
    """Canonical JSON of an algorithm and its configuration, as in a fingerprint but without what may be secret."""
    return json.dumps(
        {"algorithm": algorithm, "configuration": redacted(config.model_description())},
        sort_keys=True,
        separators=(",", ":"),
    )
