"""The error of a configuration, with suggestions of similar keys, files and bundled configurations.

Shell completion imports this module, so it must not import slow modules.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
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
    """Return overrides for `load_configuration` from keys and values of the command line; None means not given."""
    return [f"{key}={json.dumps(value, default=str)}" for key, value in given.items() if value is not None]


_FAMILIES = {"gym", "ale", "minatar", "miniwob", "miniworld", "vizdoom", "lab"}
_SIMILARITY = 0.75
_ID = re.compile(r".+-v\d+|[\w.]+:\w+")


def unknown_configuration(name: str, known: Sequence[str]) -> str:
    """Return a message that rejects the name of a configuration and suggests others."""
    similar = _similar(name, known)
    if not similar and (guess := nearest(name, known)):
        similar = [guess]
    sentence = f"unknown configuration {name!r}"
    if _ID.fullmatch(name):
        sentence += f"; an environment needs no configuration: relaax run --algorithm da3c --environment {name}"
        if ":" in name:
            return sentence
    if len(similar) == 1:
        return f"{sentence}; did you mean {similar[0]!r}?"
    if similar:
        return f"{sentence}; similar names: {', '.join(similar)}"
    return f"{sentence}; `relaax list configurations` shows the bundled ones"


def nearest_file(path: Path, suffix: str) -> str | None:
    """Return the file next to `path` with the most similar name; None if none is similar. `path` may lack `suffix`."""
    files = {file.stem: str(file) for file in sorted(path.parent.glob(f"*{suffix}")) if file.is_file()}
    guess = nearest(path.name.removesuffix(suffix), files, _SIMILARITY)
    return files[guess] if guess else None


def _similar(name: str, known: Sequence[str]) -> list[str]:
    """Return the known names that share most words with `name`; words of environment families count least."""
    words = {word for one in known for word in _words(one)}
    own = _words(name)
    joined = [first + second for first, second in itertools.pairwise(own)]  # lunar_lander means lunarlander
    meant = {nearest(word, words, _SIMILARITY) for word in (*own, *joined)} - {None}
    scores = {one: _score(meant & set(_words(one))) for one in known}
    best = max(scores.values(), default=(0, 0))
    return [one for one, score in scores.items() if score == best] if best[0] else []


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def _score(shared: Iterable[str | None]) -> tuple[int, int]:
    """Return the number of shared words that are not names of environment families, and the number that are."""
    counted = [word in _FAMILIES for word in shared]
    return counted.count(False), counted.count(True)
