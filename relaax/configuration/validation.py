"""From untrusted keys and values to checked models, with errors that a person can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pydantic

from relaax.configuration.keys import Models, inner_model, key_of, kinds_of, unknown_key

Model = TypeVar("Model", bound=pydantic.BaseModel)
KWARGS = "kwargs"
"""A key whose value are keyword arguments for something that is not RELAAX's."""


class ConfigurationError(Exception):
    """The configuration cannot be used. The message names the key, the value and the way out."""


class Section(pydantic.BaseModel):
    """A part of the configuration. Unknown keys are refused; `validate_section` says which one was meant."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """To Python it is 1, and to pydantic too."""
        if isinstance(value, bool) and info.field_name is not None:
            kinds = kinds_of(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and not kinds & {bool, Any}:
                raise ValueError("a number is needed")
        return value


def normalized(data: Any) -> Any:
    """`data` with keys as Python names: `--log-level` becomes `log_level`, at every depth.

    What stands under a key `kwargs` is left as it is: those are names of somebody else's.

    Raises ConfigurationError where two keys become one.
    """
    if isinstance(data, Mapping):
        result: dict[str, Any] = {}
        for key, value in data.items():
            name = _normalized_key(key)
            if name in result:
                raise ConfigurationError(f"the key {str(key)!r} stands twice: with dashes it is still {name!r}")
            result[name] = value if name == KWARGS else normalized(value)
        return result
    return data


def _normalized_key(key: Any) -> str:
    return str(key).lstrip("-").replace("-", "_")


def validate_section(model: type[Model], data: Any, where: str, models: Models | None = None) -> Model:
    """`data` as a `model`.

    `where` is the section's name for messages, `models` are those of all sections: a key that stands in the wrong one
    is sent to the right one. Raises ConfigurationError, one line for each thing that is wrong.
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"{where}: a mapping of keys to values is needed, not {data!r}")
    try:
        return model.model_validate(normalized(data))
    except pydantic.ValidationError as error:
        raise ConfigurationError("\n".join(_sentences(model, error, where, models or {where: model}))) from None


def _sentences(
    model: type[pydantic.BaseModel], error: pydantic.ValidationError, where: str, models: Models
) -> list[str]:
    """One for each key: of a union pydantic says what is wrong with each of its members, under names of its own."""
    refused: dict[str, list[str]] = {}
    lines: list[str] = []
    for item in error.errors(include_url=False):
        if item["type"] == "extra_forbidden":
            *outer, last = item["loc"]
            keys, owner = _follow(model, outer)
            lines.append(
                f"{'.'.join([where, *keys])}: {unknown_key(str(last), _names(owner), {**models, where: model})}"
            )
            continue
        path = ".".join([where, *_follow(model, item["loc"])[0]])
        if item["type"] == "missing":
            lines.append(f"{path}: is needed and has no default")
        elif item["type"] == "value_error" and isinstance(item["input"], Mapping):  # keys that do not go together
            lines.append(f"{path}: {_reason(item)}")
        else:
            refused.setdefault(f"{path}: {item['input']!r} cannot be used", []).append(_reason(item))
    return [*lines, *(f"{what}: {', or '.join(reasons)}" for what, reasons in refused.items())]


def _reason(item: Any) -> str:
    if item["type"] in ("model_type", "dict_type"):
        return "keys and values are expected"
    message = item["msg"].removeprefix("Value error, ")
    return f"{message[:1].lower()}{message[1:]}"


def _names(model: type[pydantic.BaseModel]) -> list[str]:
    return [key_of(name, field) for name, field in model.model_fields.items()]


def _follow(
    model: type[pydantic.BaseModel], location: Iterable[int | str]
) -> tuple[list[str], type[pydantic.BaseModel]]:
    """The keys and indices of `location`, without pydantic's names for the members of unions, and the innermost model
    that they lead to.
    """
    keys: list[str] = []
    in_model = True
    for part in location:
        if isinstance(part, int):
            keys.append(str(part))
        elif in_model:
            keys.append(part)
            fields = [field for name, field in model.model_fields.items() if part in (name, field.alias)]
            inner = inner_model(fields[0].annotation) if fields else None
            model, in_model = inner or model, inner is not None
    return keys, model
