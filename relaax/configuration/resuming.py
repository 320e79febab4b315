"""Which keys may have another value when a run is resumed: declared at the key, as `Fixed[int]` or `Free[float]`."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Annotated, TypeVar

import pydantic

from relaax.configuration.keys import KeyPath, key_of

T = TypeVar("T")


class Resume(enum.Enum):
    """What a key may do when a run is resumed."""

    FIXED = "fixed"
    FREE = "free"


Fixed = Annotated[T, Resume.FIXED]
"""The key must have the value that it had: the saved parameters, slots or statistics mean something by it."""

Free = Annotated[T, Resume.FREE]
"""The key may have another value when a run is resumed, which holds from then on."""


def resume_rules(model: type[pydantic.BaseModel], prefix: KeyPath = ()) -> Iterator[tuple[KeyPath, Resume]]:
    """Each key that holds a value, those of models inside included, and its rule.

    A class that declares a key anew and says nothing of resuming keeps what its parent said. The keys of a model inside
    have the rule of the key that holds it where they have none of their own. What nobody declares is fixed: to refuse
    loses nothing, and to go on with another meaning may lose a week. A list is compared whole.
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
    """What the class says, or the first of its parents that says something."""
    for owner in model.__mro__:
        field = getattr(owner, "__pydantic_fields__", {}).get(name)
        for mark in field.metadata if field is not None else ():
            if isinstance(mark, Resume):
                return mark
    return None
