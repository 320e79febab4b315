"""The hyperbolic tangent for compiled kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from relaax.machine_code import ANY_ORDER, inlined

# A rational function that is the hyperbolic tangent to some units of the last place, which is Eigen's, and so
# TensorFlow's. A call of the C library for each number would take longer than the network.
_LIMIT, _MINUS_LIMIT = np.float32(7.90531110763549805), np.float32(-7.90531110763549805)
_A1, _A3, _A5, _A7, _A9, _A11, _A13 = (
    np.float32(number)
    for number in (
        4.89352455891786e-03,
        6.37261928875436e-04,
        1.48572235717979e-05,
        5.12229709037114e-08,
        -8.60467152213735e-11,
        2.00018790482477e-13,
        -2.76076847742355e-16,
    )
)
_B0, _B2, _B4, _B6 = (
    np.float32(number)
    for number in (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
)


def _tanh(values: Any) -> None:
    """Apply the hyperbolic tangent in place, float32 [n]."""
    for i in range(len(values)):
        x = values[i]
        x = _LIMIT if x > _LIMIT else x  # nan stays nan
        x = _MINUS_LIMIT if x < _MINUS_LIMIT else x
        square = x * x
        above = ((((square * _A13 + _A11) * square + _A9) * square + _A7) * square + _A5) * square + _A3
        below = ((square * _B6 + _B4) * square + _B2) * square + _B0
        values[i] = x * (above * square + _A1) / below


tanh = inlined(_tanh, ANY_ORDER)
"""`tanh(values)`: the hyperbolic tangent of float32 [n], in place, for use within a kernel."""
