"""The error of a configuration, and suggestions in its message. Nothing slow is imported: completion needs this."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any


class ConfigurationError(Exception):
    """The configuration cannot be used. The message names the key, the value and a remedy."""


def nearest(word: str, known: Iterable[str], cutoff: float = 0.5) -> str | None:
    """Return the known word most similar to `word`, ignoring case; None if none is similar."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), list(by_lower), n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """Return a message that rejects `word` and suggests a known one."""
    names = sorted(known)
    guess = nearest(word, names)
    way_out = f"did you mean {guess!r}?" if guess else f"known: {', '.join(names)}"
    return f"unknown {what} {word!r}; {way_out}"


def overrides_of(given: Mapping[str, Any]) -> list[str]:
    """Return overrides for `load_configuration` from command-line keys and values; None means not given."""
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
