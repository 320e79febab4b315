"""Parser and checks of the command line's arguments for environments and their wrappers."""

from __future__ import annotations

import argparse
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relaax.client import command
from relaax.client.connection.values import UnsupportedSpace, values_of
from relaax.client.program.families import nearest
from relaax.client.program.modules import error_text, find_object, literal

_FRAMES = {"AtariPreprocessing": "frame_skip", "MaxAndSkipObservation": "skip", "RepeatAction": "num_repeats"}
"""Wrappers of gymnasium whose steps take several frames, and the argument that sets the number of frames."""
_MAKE_ARGUMENTS = ("max_episode_steps", "disable_env_checker")  # arguments of gymnasium.make itself


@dataclass(frozen=True)
class Wrapper:
    """A wrapper of each environment, created by `make(env, **kwargs)`. `name` is the user's text for it."""

    name: str
    make: Callable[..., Any]
    kwargs: Mapping[str, Any]

    def __call__(self, env: Any) -> Any:
        """Return the wrapped environment. Raises command.UsageError if `make` fails."""
        import gymnasium

        naming = command.sibling_module(__package__, "naming")
        try:
            made = self.make(env, **self.kwargs)
        except naming.USAGE_ERRORS as error:
            raise command.UsageError(f"--wrapper {self.name}: {error_text(error)}") from error
        if not isinstance(made, gymnasium.Env):
            raise command.UsageError(f"--wrapper {self.name}: made {made!r}, which is not a gymnasium environment")
        return made

    @property
    def frame_skip(self) -> int:
        """Return the frames per step of the wrapper; 1 for an unknown wrapper."""
        parameter = _FRAMES.get(self.name)
        if parameter is None:
            return 1
        bound = inspect.signature(self.make).bind(None, **self.kwargs)
        bound.apply_defaults()
        return int(bound.arguments[parameter])


def frame_skip(wrappers: Sequence[Wrapper]) -> int:
    """Return the frames per step of all these wrappers together."""
    return math.prod(wrapper.frame_skip for wrapper in wrappers)


def wrapper_of(name: str, kwargs: Mapping[str, Any]) -> Wrapper:
    """Return a gymnasium wrapper by its name, or MODULE:CLASS. Raises command.UsageError if it does not exist."""
    import gymnasium.wrappers

    if ":" in name:
        make = find_object(name)
    else:
        known = [other for other in gymnasium.wrappers.__all__ if other[0].isupper()]
        if name not in known:
            near = nearest(name, known)
            raise command.UsageError(
                f"--wrapper {name}: gymnasium.wrappers has no such class{near}; for another one, write MODULE:CLASS"
            )
        try:
            make = getattr(gymnasium.wrappers, name)
        except ImportError as error:  # it needs a library such as jax
            raise command.UsageError(f"--wrapper {name}: {error}") from error
    check_names(f"--wrapper {name}", make, kwargs)
    return Wrapper(name, make, {key: _to_annotated_type(make, key, value) for key, value in kwargs.items()})


def require_sendable(space: Any) -> None:
    """Raise command.UsageError for a Dict observation with some parts that cannot be sent, such as Text."""
    from gymnasium.spaces import Dict

    if isinstance(space, Dict):
        kept = [key for key, part in space.spaces.items() if _is_sendable(part)]
        if kept and len(kept) < len(space.spaces):
            others = ", ".join(f"{key!r} ({type(part).__name__})" for key, part in space.items() if key not in kept)
            keep = json.dumps({"filter_keys": kept})
            raise command.UsageError(
                f"observations have parts that cannot be sent: {others}; to remove them: --wrapper"
                f" 'FilterObservation={keep}', or the same in relaax-run.wrappers"
            )


def _is_sendable(space: Any) -> bool:
    try:
        values_of(space)
    except UnsupportedSpace:
        return False
    return True


def check_names(what: str, make: Callable[..., Any], kwargs: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Raise command.UsageError for arguments that `make` does not accept, as far as its signature shows."""
    known, takes_any = _parameters(make)
    for name in kwargs:
        if name not in known and name not in more and not takes_any:
            raise command.UsageError(f"{what} has no argument {name!r}; it has {', '.join(known) or 'none'}")


def check_environment(spec: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise command.UsageError for arguments that the environment's constructor does not accept."""
    check_names(spec.id, _load(spec.entry_point), kwargs, _MAKE_ARGUMENTS)


def accepts(entry_point: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether an environment's own vector form accepts these arguments."""
    return kwargs.keys() <= set(_parameters(_load(entry_point))[0])


def wrapper(text: str) -> tuple[str, dict[str, Any]]:
    """Parse NAME or NAME={...} for argparse, with the arguments of a wrapper as a JSON object."""
    name, equals, value = text.partition("=")
    kwargs = literal(value) if equals else {}
    if not name or not isinstance(kwargs, dict) or not all(isinstance(key, str) for key in kwargs):
        raise argparse.ArgumentTypeError(
            f'{text!r} is neither NAME nor NAME={{...}} with arguments, such as ClipReward={{"max_reward": 1}}'
        )
    return name, kwargs


def _to_annotated_type(make: Callable[..., Any], name: str, value: Any) -> Any:
    """Convert a list to the array or tuple that a wrapper requires, because JSON and YAML have neither."""
    parameter = inspect.signature(make).parameters.get(name)
    if isinstance(value, list) and parameter is not None and "ndarray" in str(parameter.annotation):
        import numpy as np

        return np.array(value)
    return _to_tuples(value)


def _to_tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _to_tuples(item) for key, item in value.items()}
    return tuple(_to_tuples(item) for item in value) if isinstance(value, list) else value


def _load(entry_point: Any) -> Callable[..., Any]:
    from gymnasium.envs.registration import load_env_creator

    creator: Callable[..., Any] = entry_point if callable(entry_point) else load_env_creator(entry_point)
    return creator


def _parameters(make: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of the keyword arguments of `make`, and whether it accepts any others.

    A constructor with **kwargs is assumed to pass them to its base class.
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
