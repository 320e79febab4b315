"""The keys of models at every depth, and validation of untrusted values with actionable errors."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import pydantic

from relaax.configuration.errors import ConfigurationError as ConfigurationError
from relaax.configuration.errors import nearest as nearest
from relaax.configuration.errors import unknown as unknown

KeyPath = tuple[str, ...]
"""The name of a section, then keys: ("algorithm", "RMSProp", "decay")."""

Models = Mapping[str, type[pydantic.BaseModel]]
"""Maps the name of each section to its model."""

_SYNONYMS = {
    "initial_learning_rate": ("learning_rate", "lr"),
    "rewards_gamma": ("gamma", "discount"),
    "gae_lambda": ("lambda",),
    "entropy_beta": ("entropy_coef", "ent_coef"),
    "value_loss_weight": ("value_coef", "vf_coef"),
    "episode_len": ("n_steps", "num_steps", "rollout_length", "t_max", "batch_size"),
    "max_global_step": ("total_timesteps",),
    "envs_per_client": ("num_envs", "n_envs"),
}
"""Names of keys in other libraries for which a comparison of letters suggests the wrong key or none."""
_KEY_OF_SYNONYM = {word: key for key, words in _SYNONYMS.items() for word in words}

_SURE = 0.8  # minimum similarity (0 to 1) to suggest a key of another section


def key_of(name: str, field: Any) -> str:
    """Return the name of a field's key in a file."""
    return field.alias or name


def inner_model(annotation: Any) -> type[pydantic.BaseModel] | None:
    """Return the model in an annotation such as `Model`, `Model | None` or `list[Model]`; None without a model."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := inner_model(inner))), None)


def kinds_of(annotation: Any) -> set[Any]:
    """Return the types in an annotation's union, without those of list elements."""
    if get_origin(annotation) in (Union, types.UnionType):
        return {kind for inner in get_args(annotation) for kind in kinds_of(inner)}
    if get_origin(annotation) is Annotated:
        return kinds_of(get_args(annotation)[0])
    if get_origin(annotation) is Literal:
        return {type(choice) for choice in get_args(annotation)}
    return {annotation}


def key_paths(model: type[pydantic.BaseModel], prefix: KeyPath) -> Iterator[KeyPath]:
    """Yield the path of every key of a model, including keys of nested models, but not of models in lists."""
    for name, field in model.model_fields.items():
        path = (*prefix, key_of(name, field))
        yield path
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, pydantic.BaseModel):
            yield from key_paths(inner, path)


def all_paths(models: Models) -> list[KeyPath]:
    """Return the path of every key of every section."""
    return [path for section, model in models.items() for path in key_paths(model, (section,))]


def field_at(path: KeyPath, models: Models) -> Any:
    """Return the field at a path; None if the path is unknown."""
    model, field = models.get(path[0]), None
    for key in path[1:]:
        if model is None:
            return None
        field = next((field for name, field in model.model_fields.items() if key_of(name, field) == key), None)
        model = inner_model(field.annotation) if field else None
    return field


def unknown_key(word: str, known: Iterable[str], models: Models) -> str:
    """Return the message for an unknown key; if the key belongs elsewhere, suggest it with its path.

    `known` are the keys that are valid at this place.
    """
    names = list(known)
    meant = _KEY_OF_SYNONYM.get(word.lower(), word.lower())
    places: list[KeyPath] = [(name,) for name in names if name.lower() == meant]
    if not places:
        places = [path for path in all_paths(models) if path[-1].lower() == meant]
    if not places and nearest(word, names) is None:
        guess = nearest(word, (path[-1] for path in all_paths(models)), _SURE)
        places = [path for path in all_paths(models) if path[-1] == guess]
    if places:
        return f"unknown key {word!r}; did you mean {' or '.join(repr('.'.join(path)) for path in places)}?"
    return unknown("key", word, names)


Model = TypeVar("Model", bound=pydantic.BaseModel)
FOREIGN = ("kwargs", "resources")
"""Keys whose values contain foreign names: arguments of an environment, and resources of Ray."""


class Section(pydantic.BaseModel):
    """A part of the configuration. It rejects unknown keys, and `validate_section` suggests the intended ones."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_for_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Refuse bools for numbers: Python and pydantic take True for 1."""
        if isinstance(value, bool) and info.field_name is not None:
            kinds = kinds_of(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and not kinds & {bool, Any}:
                raise ValueError("a number is required, not a bool")
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
        raise ConfigurationError(f"{where}: a mapping of keys to values is expected, not {data!r}")
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
    """Return the keys and indices of `location`, without pydantic's names of union members, and its innermost model."""
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
