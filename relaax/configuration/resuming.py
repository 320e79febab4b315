"""Rules for keys when a run is resumed: a key is declared as `Fixed[int]` or `Free[float]`."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, TypeVar

import pydantic

from relaax.configuration.validation import KeyPath, key_of

T = TypeVar("T")


class Resume(enum.Enum):
    """Whether a key may change when a run is resumed."""

    FIXED = "fixed"
    FREE = "free"


Fixed = Annotated[T, Resume.FIXED]
"""A key that must not change: the saved parameters, slots or statistics depend on it."""

Free = Annotated[T, Resume.FREE]
"""A key that may change when a run is resumed. The new value applies from then on."""


def resume_rules(model: type[pydantic.BaseModel], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Resume]]:
    """Yield each key that holds a value, including keys of nested models, with its rule.

    A key without a rule has the rule of the parent class or, in a nested model, the rule of the key that holds the
    model. If there is no such rule, it is fixed, because resuming with another value may waste a week. A list is
    compared as a whole.
    """
    yield from _rules(model, prefix, Resume.FIXED)


def _rules(model: type[pydantic.BaseModel], prefix: KeyPath, otherwise: Resume) -> Iterator[tuple[KeyPath, Resume]]:
    for name, field in model.model_fields.items():
        path: KeyPath = (*prefix, key_of(name, field))
        annotation = field.annotation
        rule = _declared(model, name) or otherwise
        if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
            yield from _rules(annotation, path, rule)
        else:
            yield path, rule


def _declared(model: type[pydantic.BaseModel], name: str) -> Resume | None:
    """Return the rule that the class declares, or else its nearest ancestor that declares one."""
    for owner in model.__mro__:
        field = getattr(owner, "__pydantic_fields__", {}).get(name)
        for mark in field.metadata if field is not None else ():
            if isinstance(mark, Resume):
                return mark
    return None
