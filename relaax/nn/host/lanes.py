"""Sixteen float32 at once in compiled kernels.

LLVM makes vector code of a loop of unknown length that serves only where it is long. A convolution's filters are 16 or
32, and those it takes one by one: four times slower, no faster than numpy.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
"""A processor with narrower registers does the same in several steps."""

_ALIGNED = 4  # bytes: that of a float32, as arrays may start anywhere


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Where 16 numbers of a flat array stand, from `index` on."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.VectorType(ir.FloatType(), LANES).as_pointer())


def _copy(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    target, at, source, start = arguments
    given = builder.load(_place(context, builder, signature.args[2], source, start), align=_ALIGNED)
    builder.store(given, _place(context, builder, signature.args[0], target, at), align=_ALIGNED)
    return context.get_dummy_value()


def _add(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    target, at, source, start = arguments
    given = builder.load(_place(context, builder, signature.args[2], source, start), align=_ALIGNED)
    place = _place(context, builder, signature.args[0], target, at)
    builder.store(builder.fadd(builder.load(place, align=_ALIGNED), given), place, align=_ALIGNED)
    return context.get_dummy_value()


def _copy_lanes(_typing: Any, target: Any, at: Any, source: Any, start: Any) -> Any:
    return types.void(target, at, source, start), _copy


def _add_lanes(_typing: Any, target: Any, at: Any, source: Any, start: Any) -> Any:
    return types.void(target, at, source, start), _add


copy_lanes = intrinsic(_copy_lanes)
"""`copy_lanes(target, at, source, start)`: target[at : at + 16] = source[start : start + 16], of flat arrays."""

add_lanes = intrinsic(_add_lanes)
"""`add_lanes(target, at, source, start)`: target[at : at + 16] += source[start : start + 16], of flat arrays."""
