"""Find out how a vector environment of gymnasium starts the next episode."""

from __future__ import annotations

from typing import Any

from relaax.client.vector_client import Autoreset


def autoreset_of(env: Any) -> Autoreset:
    """Return the autoreset mode of a VectorEnv. Raises ValueError if it does not tell."""
    # Some environments write the mode into metadata that all instances of their class share: ask the instance first.
    mode = getattr(getattr(env, "unwrapped", env), "autoreset_mode", None) or env.metadata.get("autoreset_mode")
    name = str(getattr(mode, "value", mode)).replace("_", "").lower()
    match name:
        case "nextstep":
            return "next_step"
        case "samestep":
            return "same_step"
        case "disabled":
            return "disabled"
    raise ValueError(
        f"the vector environment says {mode!r} for metadata['autoreset_mode']:"
        " set it to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED, whichever it does"
    )
