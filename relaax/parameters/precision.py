"""Conversion of float32 vectors to 16 bits a number and back, which halves their bytes on the wire.

Numbers are rounded to the nearest, ties to even (IEEE 754). Finite numbers stay finite: a number that is too large
becomes the largest finite one with its sign. A number that is too small becomes 0. Infinity and NaN do not change, so
that a parameter server discards such a gradient as it does without rounding.

For 678 k numbers, numpy's conversions to and from float16 take 3.7 and 1.3 ms, as long as sending them. These kernels
take 0.08 and 0.05 ms. `ml_dtypes` supports bfloat16 only, and takes 0.24 and 0.05 ms.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relaax.machine_code import SIGNED, ArrayType, Kernel, compiled_once
from relaax.parameters import parameter_server_pb2 as pb
from relaax.parameters.interfaces import FlatVector
from relaax.parameters.wire import float32_of

_log = logging.getLogger(__name__)

PRECISIONS: Final = {
    "float32": pb.PRECISION_UNSPECIFIED,
    "float16": pb.PRECISION_FLOAT16,
    "bfloat16": pb.PRECISION_BFLOAT16,
}
"""The values of `relaax-rlx-server.wire-precision`, each with its value in messages."""

_NAMES = {precision: name for name, precision in PRECISIONS.items()}
_LARGEST = {pb.PRECISION_FLOAT16: "65504", pb.PRECISION_BFLOAT16: "3.39e38"}


def check_precision(precision: pb.Precision) -> None:
    """Raise ValueError if a message names an unknown precision."""
    if precision not in _NAMES:
        known = ", ".join(f"{number} ({name})" for number, name in _NAMES.items())
        raise ValueError(f"precision {precision} is not supported; use one of {known}")


class Narrower:
    """Encoder of vectors in a requested precision. Thread-safe.

    `contents`: the name of the numbers in the log. Only the first vector with clamped numbers is logged.
    """

    def __init__(self, contents: str) -> None:
        self._contents = contents
        self._has_warned = False

    def __call__(self, vector: FlatVector, precision: pb.Precision) -> npt.NDArray[Any]:
        """Encode a contiguous float32 vector [n]. Return the vector itself, or uint16 [n].

        Raises ValueError for an unknown precision.
        """
        if precision == pb.PRECISION_UNSPECIFIED:
            return vector
        narrow, _ = _kernels(precision)
        halves = np.empty(len(vector), np.uint16)
        saturated = narrow(vector.view(np.uint32), halves)
        if saturated and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%d of %d %s are too large for %s and are sent as %s: choose another wire-precision (logged once)",
                *(saturated, len(vector), self._contents, _NAMES[precision], _LARGEST[precision]),
            )
        return halves


def widened(data: memoryview, precision: pb.Precision) -> FlatVector:
    """Return the numbers of a long field as read-only float32: a view of `data` if it holds aligned float32.

    Raises ValueError if `data` ends within a number, or if the precision is unknown.
    """
    if precision == pb.PRECISION_UNSPECIFIED:
        return float32_of(data)
    _, widen = _kernels(precision)
    if len(data) % 2:
        raise ValueError(f"a {_NAMES[precision]} vector must have a multiple of 2 bytes, not {len(data)}")
    vector = np.empty(len(data) // 2, np.float32)
    widen(np.require(np.frombuffer(data, np.uint16), requirements="A"), vector.view(np.uint32))
    vector.flags.writeable = False
    return vector


def prepare(precision: str) -> None:
    """Load the kernels of this precision. Called before a server forks, so that workers need not load them."""
    if PRECISIONS[precision]:
        _kernels(PRECISIONS[precision])


@cache
def _kernels(precision: pb.Precision) -> tuple[Kernel, Kernel]:
    """Return the compiled kernels that narrow uint32 bits to uint16, and widen them again.

    The first returns the count of numbers that are too large. Both release Python's lock. Raises ValueError for an
    unknown precision.
    """
    check_precision(precision)
    narrow, widen = _COMPILED[precision]
    return narrow(), widen()


# The loops have no branches, and every value has 32 bits, so that the compiler vectorizes them. numba's default of
# 64 bits makes them three times slower.
_U32: Any = np.uint32
# The bits of a float32: the sign; the magnitude; the magnitude of infinity (that of NaN is larger).
_SIGN, _SIZE, _INFINITE = _U32(0x80000000), _U32(0x7FFFFFFF), _U32(0x7F800000)
_ONE_HALF = np.float32(0.5)
_narrower = compiled_once(ArrayType("uint32"), ArrayType("uint16", writable=True), returns=SIGNED)
_widener = compiled_once(ArrayType("uint16"), ArrayType("uint32", writable=True))


@_narrower
def _narrow_to_bfloat16(bits: Any, halves: Any) -> Any:
    saturated = _U32(0)
    for i in range(len(bits)):
        size = _U32(bits[i] & _SIZE)
        # Round half to even: add just under half of the last place, plus 1 if it is odd, and keep the carry.
        short = _U32(_U32(size + _U32(0x7FFF) + _U32(_U32(size >> _U32(16)) & _U32(1))) >> _U32(16))
        too_large = _U32(short == _U32(0x7F80)) & _U32(size < _INFINITE)
        saturated = _U32(saturated + too_large)
        short = _U32(short - too_large)
        short = _U32(0x7FC0) if size > _INFINITE else short
        halves[i] = np.uint16(short | _U32(_U32(bits[i] & _SIGN) >> _U32(16)))
    return np.int64(saturated)


@_narrower
def _narrow_to_float16(bits: Any, halves: Any) -> Any:
    saturated = _U32(0)
    for i in range(len(bits)):
        size = _U32(bits[i] & _SIZE)
        # Rounded as above; the exponent's bias changes from 127 to 15.
        rounded = _U32(size - _U32(112 << 23) + _U32(0xFFF) + _U32(_U32(size >> _U32(13)) & _U32(1)))
        # float16 numbers below 2^-14 are multiples of 2^-24. So are float32 numbers from 0.5 to 1: adding 0.5 rounds.
        tiny = _U32(np.float32(np.uint32(size).view(np.float32) + _ONE_HALF).view(np.uint32) - _U32(126 << 23))
        short = tiny if size < _U32(113 << 23) else _U32(rounded >> _U32(13))
        too_large = _U32(size >= _U32(0x477FF000)) & _U32(size < _INFINITE)  # from 65520 on, the nearest is infinite
        saturated = _U32(saturated + too_large)
        short = _U32(0x7BFF) if too_large else short
        short = _U32(0x7C00) if size == _INFINITE else short
        short = _U32(0x7E00) if size > _INFINITE else short
        halves[i] = np.uint16(short | _U32(_U32(bits[i] & _SIGN) >> _U32(16)))
    return np.int64(saturated)


@_widener
def _widen_from_bfloat16(halves: Any, bits: Any) -> None:
    for i in range(len(halves)):
        bits[i] = _U32(halves[i]) << _U32(16)


@_widener
def _widen_from_float16(halves: Any, bits: Any) -> None:
    for i in range(len(halves)):
        size = _U32(_U32(halves[i]) & _U32(0x7FFF))
        long = _U32(_U32(size << _U32(13)) + _U32(112 << 23))
        tiny = np.float32(np.float32(size) * np.float32(2**-24)).view(np.uint32)
        long = tiny if size < _U32(0x400) else long
        long = _U32(_U32(size << _U32(13)) | _INFINITE) if size >= _U32(0x7C00) else long
        bits[i] = long | _U32(_U32(_U32(halves[i]) & _U32(0x8000)) << _U32(16))


_COMPILED: Final = {
    pb.PRECISION_FLOAT16: (_narrow_to_float16, _widen_from_float16),
    pb.PRECISION_BFLOAT16: (_narrow_to_bfloat16, _widen_from_bfloat16),
}
