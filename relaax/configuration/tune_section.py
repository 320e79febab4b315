"""The section `tune`: the values that `relaax tune` may try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic

from relaax.configuration.validation import Section

TUNE = "tune"
"""Name of the section."""
_FORMS = "{log: [1e-5, 1e-2]}, {uniform: [0.7, 1]}, {integers: [5, 40]} or {choices: [1, 3, 5]} is expected"
LOG, UNIFORM, INTEGERS, CHOICES = "log", "uniform", "integers", "choices"


@dataclass(frozen=True, slots=True)
class SearchRange:
    """The values of a key. `kind`: one of the constants above. `values`: all choices, or lowest and highest value."""

    kind: str
    values: tuple[Any, ...]


def search_range(value: Any) -> SearchRange:
    """Return the values that a key's value describes. Raises ValueError."""
    if isinstance(value, SearchRange):
        return value
    if not isinstance(value, Mapping) or len(value) != 1:
        raise ValueError(_FORMS)
    (kind, values), *_ = value.items()
    if kind not in (LOG, UNIFORM, INTEGERS, CHOICES) or not isinstance(values, list | tuple) or not values:
        raise ValueError(_FORMS)
    if kind == CHOICES:
        return SearchRange(kind, tuple(values))
    if len(values) != 2 or any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        raise ValueError(f"{kind} needs the lowest and the highest value; {_FORMS}")
    low, high = values
    if not low < high:
        raise ValueError(f"the lowest value, {low:g}, is not below the highest, {high:g}")
    if kind == LOG and low <= 0:
        raise ValueError(f"a logarithmic range begins above 0, not at {low:g}")
    if kind == INTEGERS and any(one != int(one) for one in values):
        raise ValueError(f"integers needs whole numbers, not {low:g} and {high:g}")
    return SearchRange(kind, (int(low), int(high)) if kind == INTEGERS else (float(low), float(high)))


def _as_written(values: SearchRange) -> Any:
    return {values.kind: list(values.values)}


_BOUNDS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_MEANING = {
    LOG: "Lowest and highest value, on a logarithmic scale.",
    UNIFORM: "Lowest and highest value.",
    INTEGERS: "Lowest and highest whole number.",
}
Range = Annotated[
    SearchRange,
    pydantic.PlainValidator(search_range),
    pydantic.PlainSerializer(_as_written),
    pydantic.WithJsonSchema(
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
            "properties": {
                **{kind: {**_BOUNDS, "description": meaning} for kind, meaning in _MEANING.items()},
                CHOICES: {"type": "array", "minItems": 1, "description": "All values."},
            },
        }
    ),
]
"""One of {log: [LOW, HIGH]}, {uniform: [LOW, HIGH]}, {integers: [LOW, HIGH]}, {choices: [VALUE, ...]}."""


class TuneSection(Section):
    """`tune`: the values that `relaax tune` may try, by key: {algorithm.gae_lambda: {uniform: [0.7, 1]}}."""

    model_config = pydantic.ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Range]

    @property
    def ranges(self) -> dict[str, SearchRange]:
        """The values of all keys, by SECTION.KEY."""
        return dict(self.__pydantic_extra__ or {})
