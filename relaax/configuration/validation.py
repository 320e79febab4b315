"""Check untrusted keys and values against models, with actionable errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import pydantic

from relaax.configuration.errors import ConfigurationError as ConfigurationError
from relaax.configuration.keys import Models, inner_model, key_of, kinds_of, unknown_key

Model = TypeVar("Model", bound=pydantic.BaseModel)
FOREIGN = ("kwargs", "resources")
"""Keys whose values have names of foreign code: arguments of an environment, and roles with the resources of Ray."""


class Section(pydantic.BaseModel):
    """A part of the configuration that rejects unknown keys; `validate_section` suggests the intended one."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Refuse bools for numbers: Python and pydantic take True for 1."""
        if isinstance(value, bool) and info.field_name is not None:
            kinds = kinds_of(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and not kinds & {bool, Any}:
                raise ValueError("a number is needed")
        return value


def normalized(data: Any) -> Any:
    """Return `data` with keys as Python names at every depth: `--log-level` becomes `log_level`.

    Leave the values of the keys `FOREIGN` unchanged.

    Raises ConfigurationError if two keys become the same.
    """
    if isinstance(data, Mapping):
        result: dict[str, Any] = {}
        for key, value in data.items():
            name = _normalized_key(key)
            if name in result:
                raise ConfigurationError(f"the key {str(key)!r} appears twice: with underscores it is {name!r}")
            result[name] = value if name in FOREIGN else normalized(value)
        return result
    return data


def _normalized_key(key: Any) -> str:
    return str(key).lstrip("-").replace("-", "_")


def validate_section(model: type[Model], data: Any, where: str, models: Models | None = None) -> Model:
    """Validate `data` as a `model`.

    `where` is the section's name for messages; `models` holds the models of all sections, used to suggest the right
    section for a misplaced key. Raises ConfigurationError, one line per problem.
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
    """Return one message per key: for a union, pydantic reports each member's errors under its own names."""
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
            lines.append(f"{path}: is required and has no default")
        elif item["type"] == "value_error" and isinstance(item["input"], Mapping):  # incompatible keys
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
    """Return the keys and indices of `location`, without pydantic's names for members of unions, and the innermost
    model on the way.
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
