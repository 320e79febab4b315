"""Arguments and options that do not exist, and the nearest ones that do."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a clause that names the most similar known word; empty if none is similar."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def require_known(call: Callable[..., Any], given: Iterable[str], *passed_to: Callable[..., Any]) -> None:
    """Raise TypeError for a keyword argument that neither `call` nor what it passes its others to has."""
    parameters = [name for one in (call, *passed_to) for name in inspect.signature(one).parameters]
    known = [name for name in parameters if name != "self" and not name.startswith("_")]
    for name in given:
        if name not in known:
            what = call.__qualname__.removesuffix(".__init__")
            raise TypeError(f"{what}() has no argument {name!r}{did_you_mean(name, known)}")
