"""Valid random arguments for each kernel, by the name of its function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relaax.machine_code.declarations import ArrayType, Declaration, NumberType

_PLAN = np.array([(0, 28, 4, 7, 0, 1, 0, 7, 0, 2), (35, 56, 7, 3, 0, 0, 7, 3, 0, 0)], np.uint64)
_PARAMETERS, _WIDTH, _ROWS = 59, 10, 6


def _real(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def _dense(rng: np.random.Generator) -> list[Any]:
    return [_real(rng, _PARAMETERS), _PLAN, _real(rng, 4 * _ROWS), _real(rng, _WIDTH * _ROWS), _ROWS, 0, _ROWS]


def _links() -> list[Any]:
    """Return a ring of the slots 0 to 9, and its reverse."""
    return [np.array([*range(1, 11), 0], np.int32), np.array([10, *range(10)], np.int32)]


def _sums(rng: np.random.Generator) -> Any:
    nodes = np.concatenate([np.zeros(16), rng.integers(1, 9, 16)]).astype(np.float64)
    for node in range(15, 0, -1):
        nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
    return nodes


def _blocks(rng: np.random.Generator, kernel: Declaration) -> list[Any]:
    first = kernel.arguments[0]
    images = rng.integers(0, 2, 2 * 9 * 10 * 3).astype(first.dtype)
    return [images, np.zeros(2 * 4 * 5 * 12, np.float32), 2, (9, 10, 3, 4, 5, 2)]


def _updates(rng: np.random.Generator, kernel: Declaration) -> list[Any]:
    """Return vectors without negative numbers, and small constants."""
    vectors = [abs(_real(rng, 1001)) for argument in kernel.arguments if isinstance(argument, ArrayType)]
    return [*vectors, *(np.float32(0.1) for argument in kernel.arguments if isinstance(argument, NumberType))]


def _bits(rng: np.random.Generator, dtype: str) -> Any:
    return rng.integers(0, np.iinfo(dtype).max, 5000, dtype, endpoint=True)


_CONVOLUTION = (5, 4, 3, 2, 2, 2, 3)
_OTHERS: dict[str, Callable[[np.random.Generator], list[Any]]] = {
    "_add": lambda rng: [
        *(_real(rng, 2 * 6 * 5 * 12), _real(rng, 27), np.zeros(2 * 4 * 27, np.float32)),
        *(np.float32(0), 2, _CONVOLUTION),
    ],
    "_spread": lambda rng: [_real(rng, 2 * 4 * 27), np.zeros(2 * 6 * 5 * 12, np.float32), 2, _CONVOLUTION],
    "_relu_gradient": lambda rng: [_real(rng, 99), _real(rng, 99)],
    "_rectify": lambda rng: [_real(rng, 60), _real(rng, 20)],
    "_rectified_gradient": lambda rng: [_real(rng, 99), _real(rng, 99)],
    "_multiply": lambda rng: [
        *(np.maximum(_real(rng, 50), 0), _real(rng, 50, 7), np.zeros(50, np.uint64), np.zeros(7, np.float32))
    ],
    "_softmax": lambda rng: [
        *(_real(rng, 9, 8)[:, 2:7], rng.integers(0, 5, 9), _real(rng, 9), _real(rng, 9)),
        *(np.zeros((9, 5), np.float32), np.zeros(9, np.float32), np.zeros(9, np.float32)),
    ],
    "_log_probability": lambda rng: [_real(rng, 9, 5), rng.integers(0, 5, 9), np.zeros(9)],
    "_sums": lambda rng: [_real(rng, 40), _real(rng, 40), 4],
    "_forward": _dense,
    "_backward": lambda rng: [*_dense(rng), _real(rng, _WIDTH * _ROWS), np.zeros(_PARAMETERS, np.float32)],
    "_activate": lambda rng: [*(_real(rng, size) for size in (60, 60, 15, 15, 15)), 3, 5],
    "_differentiate": lambda rng: [*(_real(rng, size) for size in (60, 15, 15, 15, 15, 60)), 3, 5],
    "_narrow_to_bfloat16": lambda rng: [_bits(rng, "uint32"), np.zeros(5000, np.uint16)],
    "_narrow_to_float16": lambda rng: [_bits(rng, "uint32"), np.zeros(5000, np.uint16)],
    "_widen_from_bfloat16": lambda rng: [_bits(rng, "uint16"), np.zeros(5000, np.uint32)],
    "_widen_from_float16": lambda rng: [_bits(rng, "uint16"), np.zeros(5000, np.uint32)],
    "_retain": lambda rng: [np.ones(9, np.int32), rng.integers(0, 9, 5).astype(np.int32)],
    "_release": lambda rng: [np.ones(9, np.int32), np.zeros(9, np.int32), 1, 8, np.array([2, 8, 5], np.int32)],
    "_stack": lambda rng: [
        *(rng.integers(0, 255, 9 * 12).astype(np.uint8), rng.integers(0, 9, 8).astype(np.int32)),
        *(4, 12, 1, np.zeros(8 * 12, np.uint8)),
    ],
    "_link": lambda rng: [np.full(11, 10, np.int32), np.full(11, 10, np.int32), rng.permutation(10)],
    "_unlink": lambda rng: [*_links(), rng.permutation(10)[:4]],
    "_walk": lambda rng: [_links()[0], np.zeros(10, np.int64)],
    "_set": lambda rng: [_sums(rng), rng.permutation(16)[:7], rng.random(7)],
    "_find": lambda rng: [nodes := _sums(rng), rng.random(20) * nodes[1], np.zeros(20, np.int64)],
    "_draw": lambda rng: [_sums(rng), rng.random(9), np.zeros(9, np.int64), np.zeros(9)],
    "_look_up": lambda rng: [
        *(rng.integers(1, 99, 16).astype(np.uint64), 16, 120, rng.permutation(16)[:7]),
        *(np.zeros(7, np.uint64), np.zeros(7, np.int64)),
    ],
    "_positions": lambda rng: [np.append(rng.integers(-1, 20, 9), 20), -1, 20, np.zeros(10, np.int64)],
    "_differences": lambda rng: [
        *(rng.integers(0, 255, 2 * 7 * 9 * 2).astype(np.uint8), _real(rng, 7 * 9 * 2)),
        *(np.zeros(2 * 3 * 4 * 3 * 3 * 2, np.float32), 2, (7, 9, 2, 3, 4, 3)),
    ],
    "_pop_drawn": lambda rng: [_sums(rng), rng.random(9), np.zeros(9, np.int64)],
    "_set_largest": lambda rng: [np.zeros(32), rng.permutation(16)[:7], rng.random(7)],
    "_set_lowest": lambda rng: [
        *(np.full(32, np.inf), np.full(32, 2**64 - 1, np.uint64), rng.permutation(16)[:7]),
        *(rng.integers(0, 3, 7).astype(np.float64), np.arange(7, dtype=np.uint64)),
    ],
    "_pop_lowest": lambda rng: [
        *(rng.integers(0, 3, 32).astype(np.float64), rng.integers(0, 16, 32).astype(np.uint64)),
        *(16, np.zeros(6, np.int64)),
    ],
}


def _wanted(rng: np.random.Generator) -> list[Any]:
    """Return the arguments of the search for keys. Some of the keys are missing."""
    keys = np.arange(16, dtype=np.uint64) + 32
    wanted = rng.integers(0, 64, 20).astype(np.uint64)
    found = np.zeros(20, np.int64), np.zeros(20, np.uint64), np.zeros(20)
    return [keys, 16, wanted, rng.random(20), *found]


def arguments_of(kernel: Declaration) -> list[Any]:
    """Return new arguments, equal in each call."""
    rng = np.random.default_rng(11)
    name, module = kernel.function.__name__, kernel.function.__module__
    if name == "_blocks_kernel":
        return _blocks(rng, kernel)
    if module.startswith("relaax.optim."):
        return _updates(rng, kernel)
    if (module, name) == ("relaax.replay.table.items", "_find"):
        return _wanted(rng)
    return _OTHERS[name](rng)
