"""Arguments of environments and wrappers around them, from the words of a command line."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relaax.client import command
from relaax.client.values import UnsupportedSpace, values_of

_FRAMES = {"AtariPreprocessing": "frame_skip", "MaxAndSkipObservation": "skip", "RepeatAction": "num_repeats"}
"""Wrappers of gymnasium by which a step takes several frames, and the argument that says how many."""
_OF_MAKE = ("max_episode_steps", "disable_env_checker")  # arguments of gymnasium.make itself


@dataclass(frozen=True)
class Wrapper:
    """One that is put around each environment: `make(env, **kwargs)`, known to the user as `name`."""

    name: str
    make: Callable[..., Any]
    kwargs: Mapping[str, Any]

    def __call__(self, env: Any) -> Any:
        """The environment in its wrapper. Raises command.UsageError if that does not go."""
        import gymnasium

        naming = command.beside(__package__, "naming")
        try:
            made = self.make(env, **self.kwargs)
        except naming.WRONG as error:
            raise command.UsageError(f"--wrapper {self.name}: {naming.said(error)}") from error
        if not isinstance(made, gymnasium.Env):
            raise command.UsageError(f"--wrapper {self.name}: made {made!r}, which is no environment of gymnasium")
        return made

    @property
    def frame_skip(self) -> int:
        """How many of the environment's frames a step takes, as far as that is known."""
        parameter = _FRAMES.get(self.name)
        if parameter is None:
            return 1
        bound = inspect.signature(self.make).bind(None, **self.kwargs)
        bound.apply_defaults()
        return int(bound.arguments[parameter])


def frame_skip(wrappers: Sequence[Wrapper]) -> int:
    """How many frames a step takes in all these wrappers."""
    return math.prod(wrapper.frame_skip for wrapper in wrappers)


def wrapper_of(name: str, kwargs: Mapping[str, Any]) -> Wrapper:
    """A wrapper of gymnasium by its name, or MODULE:CLASS. Raises command.UsageError if there is none."""
    import gymnasium.wrappers

    naming = command.beside(__package__, "naming")
    if ":" in name:
        make = naming.named(name)
    else:
        known = [other for other in gymnasium.wrappers.__all__ if other[0].isupper()]
        if name not in known:
            near = naming.nearest(name, known)
            raise command.UsageError(f"--wrapper {name}: gymnasium.wrappers has none{near}; others are MODULE:CLASS")
        try:
            make = getattr(gymnasium.wrappers, name)
        except ImportError as error:  # of a library such as jax
            raise command.UsageError(f"--wrapper {name}: {error}") from error
    check_names(f"--wrapper {name}", make, kwargs)
    return Wrapper(name, make, {key: _as_wanted(make, key, value) for key, value in kwargs.items()})


def require_sendable(space: Any) -> None:
    """Raise command.UsageError for observations with parts that cannot be sent, such as Text, while others can."""
    from gymnasium.spaces import Dict

    if isinstance(space, Dict):
        kept = [key for key, part in space.spaces.items() if _is_sendable(part)]
        if kept and len(kept) < len(space.spaces):
            others = ", ".join(f"{key!r} ({type(part).__name__})" for key, part in space.items() if key not in kept)
            keep = json.dumps({"filter_keys": kept})
            raise command.UsageError(
                f"observations have parts that cannot be sent: {others}; without them: --wrapper"
                f" 'FilterObservation={keep}', or the same in relaax-run.wrappers"
            )


def _is_sendable(space: Any) -> bool:
    try:
        values_of(space)
    except UnsupportedSpace:
        return False
    return True


def check_names(what: str, make: Callable[..., Any], kwargs: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Raise command.UsageError for arguments that `make` does not have, as far as that can be known."""
    known, takes_any = _parameters(make)
    for name in kwargs:
        if name not in known and name not in more and not takes_any:
            raise command.UsageError(f"{what} has no argument {name!r}; it has {', '.join(known) or 'none'}")


def check_environment(spec: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise command.UsageError for arguments that the environment's constructor does not have."""
    check_names(spec.id, _loaded(spec.entry_point), kwargs, _OF_MAKE)


def takes(entry_point: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether an environment's own vector form has these arguments."""
    return kwargs.keys() <= set(_parameters(_loaded(entry_point))[0])


def kwarg(text: str) -> tuple[str, Any]:
    """NAME=VALUE for argparse. The value is read as JSON, else as Python writes it, else it is a text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE, such as is_slippery=false")
    return name, _value(value)


def wrapper(text: str) -> tuple[str, dict[str, Any]]:
    """NAME or NAME={...} for argparse: the arguments of a wrapper are an object of JSON."""
    name, equals, value = text.partition("=")
    kwargs = _value(value) if equals else {}
    if not name or not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise argparse.ArgumentTypeError(
            f'{text!r} is neither NAME nor NAME={{...}} with arguments, such as ClipReward={{"max_reward": 1}}'
        )
    return name, kwargs


def _value(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError):
            pass
    return text


def _as_wanted(make: Callable[..., Any], name: str, value: Any) -> Any:
    """A list as the array or the tuple that a wrapper asks for: JSON and YAML have neither."""
    parameter = inspect.signature(make).parameters.get(name)
    if isinstance(value, list) and parameter is not None and "ndarray" in str(parameter.annotation):
        import numpy as np

        return np.array(value)
    return _tuples(value)


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _loaded(entry_point: Any) -> Callable[..., Any]:
    from gymnasium.envs.registration import load_env_creator

    creator: Callable[..., Any] = entry_point if callable(entry_point) else load_env_creator(entry_point)
    return creator


def _parameters(make: Callable[..., Any]) -> tuple[list[str], bool]:
    """Names of the arguments that may be given to it by name, and whether it takes any others.

    Those that a constructor hands on as **kwargs are taken to be of the class that it is derived from.
    """
    classes = make.__mro__ if inspect.isclass(make) else ()
    functions = [vars(made)["__init__"] for made in classes if "__init__" in vars(made)] or [make]
    names: dict[str, None] = {}
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        names |= dict.fromkeys(p.name for p in parameters if p.kind in kinds and p.name not in ("self", "env"))
        if not any(p.kind == inspect.Parameter.VAR_KEYWORD for p in parameters):
            return list(names), False
    return list(names), True
