"""Turn the state of numpy's random numbers into an array of integers, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_LOW = 2**64 - 1


def state_of(generator: np.random.Generator) -> npt.NDArray[np.uint64]:
    """Return the state of a generator over PCG64: uint64 [6]."""
    whole: Any = generator.bit_generator.state
    state, increment = whole["state"]["state"], whole["state"]["inc"]
    numbers = (state >> 64, state & _LOW, increment >> 64, increment & _LOW, whole["has_uint32"], whole["uinteger"])
    return np.array(numbers, np.uint64)


def generator_of(state: npt.NDArray[np.uint64]) -> np.random.Generator:
    """Return a generator that goes on from a state uint64 [6]."""
    high, low, increment_high, increment_low, has_uint32, uinteger = (int(number) for number in state)
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": increment_high << 64 | increment_low},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)
