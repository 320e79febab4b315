"""Converters of spaces to Protobuf objects and to dicts for JSON, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.rlx import rlx_pb2
from relaax.rlx.array_spaces import MAX_ELEMENTS
from relaax.rlx.errors import ErrorCode, ProtocolError, too_many_axes
from relaax.rlx.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from relaax.rlx.wire.arrays import MAX_AXES, dtype_number, dtype_of

MAX_DEPTH = 16
MAX_LEAVES = 256
_KINDS = [field.name for field in rlx_pb2.Space.DESCRIPTOR.oneofs_by_name["space"].fields]


def check_space(space: Space, what: str) -> None:
    """Raise ProtocolError (LIMIT_EXCEEDED) if a space has too many leaves or axes."""
    for index, element in enumerate(space.elements()):
        if index >= MAX_LEAVES:
            raise _too_many_leaves(what)
        if len(element.shape) > MAX_AXES:
            raise ProtocolError(ErrorCode.LIMIT_EXCEEDED, f"{what} has a leaf of more than {MAX_AXES} axes")


def write_space(space: Space, target: rlx_pb2.Space, depth: int = 1) -> None:
    """Copy a space into an empty wire space. Raises ProtocolError if it is nested too deeply or is unsupported."""
    _check_depth(depth, "a space")
    if isinstance(space, Box):
        low, high = space.compact_bounds
        target.box.dtype = dtype_number(space.dtype)
        target.box.shape.extend(space.shape)
        target.box.low.extend(_bounds_to_wire(low, -math.inf))
        target.box.high.extend(_bounds_to_wire(high, math.inf))
    elif isinstance(space, Discrete):
        target.discrete.n, target.discrete.start = space.n, space.start
    elif isinstance(space, MultiDiscrete):
        target.multi_discrete.nvec.extend(space.nvec)
    elif isinstance(space, MultiBinary):
        target.multi_binary.SetInParent()
        target.multi_binary.shape.extend(space.shape)
    elif isinstance(space, Tuple):
        for part in space.spaces:
            write_space(part, target.tuple.spaces.add(), depth + 1)
    elif isinstance(space, Dict):
        for key, part in space.spaces.items():
            entry = target.dict.entries.add(key=key)
            write_space(part, entry.space, depth + 1)
    else:
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"spaces of type {type(space).__name__} are unsupported")


def read_space(source: rlx_pb2.Space, what: str, depth: int = 1) -> Space:
    """Return the space of a wire space. Raises ProtocolError if it is invalid or exceeds a limit."""
    _check_depth(depth, what)
    try:
        return _read_space(source, what, depth)
    except ValueError as error:
        raise ProtocolError(ErrorCode.INVALID_VALUE, f"{what}: {error}") from None


def _read_space(source: rlx_pb2.Space, what: str, depth: int) -> Space:
    kind = source.WhichOneof("space")
    if kind == "box":
        return _read_box(source.box, what)
    if kind == "discrete":
        return Discrete(source.discrete.n, source.discrete.start)
    if kind == "multi_discrete":
        return MultiDiscrete(source.multi_discrete.nvec)
    if kind == "multi_binary":
        return MultiBinary(_check_shape(source.multi_binary.shape, what))
    if kind == "tuple":
        spaces = enumerate(_check_leaf_count(source.tuple.spaces, what))
        return Tuple([read_space(part, f"{what}[{index}]", depth + 1) for index, part in spaces])
    if kind == "dict":
        parts: dict[str, Space] = {}
        for entry in _check_leaf_count(source.dict.entries, what):
            if entry.key in parts:
                raise ValueError(f"the key {entry.key!r} appears twice")
            parts[entry.key] = read_space(entry.space, f"{what}[{entry.key!r}]", depth + 1)
        return Dict(parts)
    raise ValueError(f"it is missing, or of a kind that this version does not know; there are {', '.join(_KINDS)}")


def _read_box(box: rlx_pb2.Space.Box, what: str) -> Box:
    shape = _check_shape(box.shape, what)
    low, high = np.array(box.low, np.float64), np.array(box.high, np.float64)
    count = math.prod(shape)
    for name, bound in (("low", low), ("high", high)):
        if bound.size not in (0, 1, count):
            raise ValueError(f"{name} has {bound.size} numbers for a Box of {count} elements")
    try:
        dtype = dtype_of(box.dtype)
    except ProtocolError as error:
        raise ValueError(error.message) from None
    return Box(_bounds_from_wire(low, -math.inf, shape), _bounds_from_wire(high, math.inf, shape), shape, dtype)


def _bounds_to_wire(bound: npt.NDArray[np.float64], absent: float) -> list[float]:
    if bound.ndim == 0 and bound == absent:
        return []
    values: list[float] = bound.reshape(-1).tolist()
    return values


def _bounds_from_wire(
    bound: npt.NDArray[np.float64], absent: float, shape: tuple[int, ...]
) -> float | npt.NDArray[np.float64]:
    if bound.size <= 1:
        return float(bound[0]) if bound.size else absent
    return bound.reshape(shape)


def _check_shape(shape: Any, what: str) -> tuple[int, ...]:
    if len(shape) > MAX_AXES:
        raise ProtocolError(ErrorCode.LIMIT_EXCEEDED, too_many_axes(f"{what}: ", len(shape), MAX_AXES))
    if math.prod(shape) > MAX_ELEMENTS:
        raise ProtocolError(
            ErrorCode.LIMIT_EXCEEDED, f"{what}: shape is {list(shape)}; at most {MAX_ELEMENTS} elements are allowed"
        )
    return tuple(shape)


def _check_leaf_count(parts: Any, what: str) -> Any:
    if len(parts) > MAX_LEAVES:
        raise _too_many_leaves(what)
    return parts


def _too_many_leaves(what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.LIMIT_EXCEEDED, f"{what} has more than {MAX_LEAVES} leaves")


def _check_depth(depth: int, what: str) -> None:
    if depth > MAX_DEPTH:
        raise ProtocolError(ErrorCode.LIMIT_EXCEEDED, f"{what} is nested more than {MAX_DEPTH} deep")


def space_to_dict(space: Space) -> dict[str, Any]:
    """Return the space in the canonical JSON mapping of `rlx.v1.Space`. Equal spaces give equal dicts.

    Raises ValueError if the space exceeds a limit of the protocol.
    """
    from google.protobuf import json_format

    wire = rlx_pb2.Space()
    try:
        write_space(space, wire)
        check_space(space, "the space")
    except ProtocolError as error:
        raise ValueError(error.message) from None
    result: dict[str, Any] = json_format.MessageToDict(wire)
    return result


def space_from_dict(description: Mapping[str, Any]) -> Space:
    """Return the space that a dict from `space_to_dict` describes. Raises ValueError for any other dict."""
    from google.protobuf import json_format

    wire = rlx_pb2.Space()
    try:
        json_format.ParseDict(dict(description), wire)
        space = read_space(wire, "the space")
        check_space(space, "the space")
    except (json_format.ParseError, ProtocolError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a description of a space: {error}") from None
    return space
