"""What checks find, and what they look at."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from relaax.configuration import Configuration


class Severity(enum.Enum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"  # it may work, or will not for long
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """`sentence` says what is, `way_out` what to do where something is to be done. Neither quotes a secret."""

    level: Severity
    sentence: str
    way_out: str = ""


def ok(sentence: str) -> Finding:
    """All is well."""
    return Finding(Severity.OK, sentence)


def warning(sentence: str, way_out: str) -> Finding:
    """It may work, or will not for long."""
    return Finding(Severity.WARNING, sentence, way_out)


def wrong(sentence: str, way_out: str) -> Finding:
    """It cannot work."""
    return Finding(Severity.WRONG, sentence, way_out)


class Unusable(Exception):
    """What a check needs could not be had. Another check has said why."""


@dataclass
class Subject:
    """What is looked at. The check of the configuration fills in what those after it need."""

    name: str
    overrides: Sequence[str] = ()
    found: Configuration | None = None
    algorithm: Any = None
    config: Any = None

    @property
    def configuration(self) -> Configuration:
        """Raises Unusable where there is none."""
        if self.found is None:
            raise Unusable
        return self.found


@dataclass(frozen=True)
class Check:
    """`look` gives findings, none where there is nothing to look at. It may raise Unusable."""

    name: str
    look: Callable[[Subject], Iterable[Finding]]
