"""The checks of `relaax doctor`, their findings and their subject."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from relaax.configuration import Configuration
    from relaax.rlx import Space


class Severity(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    WARNING = "warning"  # may not work, or not for long
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """`sentence` states a fact, `way_out` a remedy if one is needed. Neither quotes a secret."""

    level: Severity
    sentence: str
    way_out: str = ""


def ok(sentence: str) -> Finding:
    """Return a finding that something works."""
    return Finding(Severity.OK, sentence)


def warning(sentence: str, way_out: str) -> Finding:
    """Return a finding that something may not work, or not for long."""
    return Finding(Severity.WARNING, sentence, way_out)


def wrong(sentence: str, way_out: str) -> Finding:
    """Return a finding that something cannot work."""
    return Finding(Severity.WRONG, sentence, way_out)


class Unusable(Exception):
    """A prerequisite of a check is missing. Another check has reported why."""


@dataclass
class Subject:
    """The subject of the checks. The check of the configuration fills in what later ones need."""

    name: str
    overrides: Sequence[str] = ()
    found: Configuration | None = None
    algorithm: Any = None
    config: Any = None
    spaces: tuple[Space, Space] | None = None
    """Of the environment's observations and actions, if they are known."""

    @property
    def configuration(self) -> Configuration:
        """Return the configuration. Raises Unusable if there is none."""
        if self.found is None:
            raise Unusable
        return self.found


@dataclass(frozen=True)
class Check:
    """A named check. `look` yields findings, none if there is nothing to check. It may raise Unusable."""

    name: str
    look: Callable[[Subject], Iterable[Finding]]
