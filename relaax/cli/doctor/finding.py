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
    """A result of a check. `sentence`: a fact. `way_out`: a remedy, if one is needed. Neither quotes a secret."""

    level: Severity
    sentence: str
    way_out: str = ""


FIX = "fix the named key, file or setting"
"""The remedy for an error that names its cause."""


def ok(sentence: str) -> Finding:
    """Return a finding that something works."""
    return Finding(Severity.OK, sentence)


def warning(sentence: str, way_out: str) -> Finding:
    """Return a finding that something may not work, or not for long."""
    return Finding(Severity.WARNING, sentence, way_out)


def wrong(sentence: str, way_out: str) -> Finding:
    """Return a finding that something cannot work."""
    return Finding(Severity.WRONG, sentence, way_out)


class MissingPrerequisite(Exception):
    """A prerequisite of a check is missing, which another check has reported."""


@dataclass
class Subject:
    """The subject of the checks. The first checks set the fields that later checks need."""

    name: str
    overrides: Sequence[str] = ()
    found: Configuration | None = None
    algorithm: Any = None
    config: Any = None
    spaces: tuple[Space, Space] | None = None
    """Spaces of the environment's observations and actions, or None."""

    @property
    def configuration(self) -> Configuration:
        """Return the configuration. Raises MissingPrerequisite if it could not be read."""
        if self.found is None:
            raise MissingPrerequisite
        return self.found


@dataclass(frozen=True)
class Check:
    """A named check. `run` yields its findings, if it applies. It may raise MissingPrerequisite."""

    name: str
    run: Callable[[Subject], Iterable[Finding]]
