"""The keys that models declare, at every depth, and suggestions for unknown keys."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic

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
_CALLED = {word: key for key, words in _SYNONYMS.items() for word in words}

_SURE = 0.8  # similarity, of 1, from which on a key of another section is suggested


def key_of(name: str, field: Any) -> str:
    """Return the key of a field as it is written in a file."""
    return field.alias or name


def inner_model(annotation: Any) -> type[pydantic.BaseModel] | None:
    """Return the model inside `Model`, `Model | None`, `list[Model]` and the like; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((model for inner in get_args(annotation) if (model := inner_model(inner))), None)


def kinds_of(annotation: Any) -> set[Any]:
    """Return the types that an annotation combines, without looking into lists and the like."""
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
    meant = _CALLED.get(word.lower(), word.lower())
    places: list[KeyPath] = [(name,) for name in names if name.lower() == meant]
    if not places:
        places = [path for path in all_paths(models) if path[-1].lower() == meant]
    if not places and nearest(word, names) is None:
        guess = nearest(word, (path[-1] for path in all_paths(models)), _SURE)
        places = [path for path in all_paths(models) if path[-1] == guess]
    if places:
        return f"unknown key {word!r}; did you mean {' or '.join(repr('.'.join(path)) for path in places)}?"
    return unknown("key", word, names)
