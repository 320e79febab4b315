"""A layer of long short-term memory on the host: forward over a rollout, and backward through time.

The layer is the same as in `relaax.nn.tensorflow_engine`. BLAS computes the products, in one call for all steps if they
do not depend on each other. A compiled kernel computes the elementwise part, in one call for each step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relaax.machine_code import ANY_ORDER, FLAT, NUMBER, READ, compiled_once
from relaax.nn.host.kernels import product, product_transposed, tanh

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

_ZERO, _TWO, _THREE, _FOUR = (np.uint64(number) for number in (0, 2, 3, 4))
_HALF, _UNIT = np.float32(0.5), np.float32(1)


class LstmActivations(NamedTuple):
    """Results of the layer for B = T * N inputs: the gates after their activations, the cells and the outputs."""

    gates: Array
    """float32 [B, 4 C]"""
    cells: Array
    """float32 [B, C]"""
    outputs: Array
    """float32 [B, C]"""


class Lstm:
    """One layer with `cells` cells and `features` inputs."""

    def __init__(self, features: int, cells: int) -> None:
        self._features = features
        self.cells = cells
        self._kernel: Array = np.zeros((features + cells, 4 * cells), np.float32)
        self._bias: Array = np.zeros(4 * cells, np.float32)
        self._activate, self._differentiate = _activate(), _differentiate()

    def set_parameters(self, kernel: Array, bias: Array) -> None:
        """Use a kernel, float32 [features + C, 4 C], and a bias, [4 C]. The arrays must not change later."""
        self._kernel, self._bias = kernel, bias

    def forward(
        self, x: Array, h: Array, c: Array, restart: Mask | None, memory: LstmActivations
    ) -> tuple[Array, Array]:
        """Compute T steps of N environments into `memory`. Return h and c after the last step, as views of `memory`.

        `x`: float32 [T * N, features]. `h`, `c`: float32 [N, C], outputs and cells before the first step. `restart`:
        bool [T, N], True if the state before a step is set to zero; None if it never is.
        """
        n = len(h)
        from_x, from_h = self._kernel[: self._features], self._kernel[self._features :]
        product(x, from_x, memory.gates)
        gates = memory.gates
        gates += self._bias
        by_h = np.empty((n, 4 * self.cells), np.float32)
        for t in range(len(x) // n):
            if restart is not None and restart[t].any():
                h, c = (np.where(restart[t][:, None], np.float32(0), before) for before in (h, c))
            step = slice(t * n, (t + 1) * n)
            gates, cells, outputs = memory.gates[step], memory.cells[step], memory.outputs[step]
            product(h, from_h, by_h)
            self._activate(
                gates.reshape(-1), by_h.reshape(-1), np.ascontiguousarray(c).reshape(-1), cells.reshape(-1),
                outputs.reshape(-1), n, self.cells,
            )  # fmt: skip
            h, c = outputs, cells
        return h, c

    def backward(
        self,
        x: Array,
        h: Array,
        c: Array,
        restart: Mask,
        memory: LstmActivations,
        by_outputs: Array,
        by_kernel: Array,
        by_bias: Array,
    ) -> Array:
        """Compute the gradient of a loss over T steps of N environments. No gradient flows into the first state.

        `x`, `h`, `c`, `restart`, `memory`: as in the call of `forward`. `by_outputs`: the derivative by the outputs,
        float32 [T * N, C]; it is overwritten. `by_kernel`, `by_bias`: receive the derivatives by the parameters.
        Returns the derivative by `x`, float32 [T * N, features].
        """
        steps, n = restart.shape
        from_x, from_h = self._kernel[: self._features], self._kernel[self._features :]
        before_h, before_c = _before(h, memory.outputs, restart), _before(c, memory.cells, restart)
        by_gates = np.empty_like(memory.gates)
        by_h, by_c = np.zeros((n, self.cells), np.float32), np.zeros((n, self.cells), np.float32)
        for t in range(steps - 1, -1, -1):
            step = slice(t * n, (t + 1) * n)
            by_output = by_outputs[step]
            by_output += by_h
            self._differentiate(
                memory.gates[step].reshape(-1), before_c[step].reshape(-1), memory.cells[step].reshape(-1),
                by_output.reshape(-1), by_c.reshape(-1), by_gates[step].reshape(-1), n, self.cells,
            )  # fmt: skip
            if t:
                product_transposed(by_gates[step], from_h, by_h)
                if restart[t].any():
                    by_h[restart[t]] = 0
                    by_c[restart[t]] = 0
        np.matmul(x.T, by_gates, out=by_kernel[: self._features])
        np.matmul(before_h.T, by_gates, out=by_kernel[self._features :])
        np.sum(by_gates, axis=0, out=by_bias)
        by_x = np.empty_like(x)
        product_transposed(by_gates, from_x, by_x)
        return by_x


def load_kernels() -> None:
    """Load all kernels before a fork."""
    _activate(), _differentiate()


def _before(first: Array, after: Array, restart: Mask) -> Array:
    """Return the state before each step, float32 [T * N, C]. `first`: before the first step. `after`: after each."""
    n = len(first)
    before = np.empty_like(after)
    before[:n], before[n:] = first, after[:-n]
    before[restart.reshape(-1)] = 0
    return before


@compiled_once(FLAT, READ, READ, FLAT, FLAT, *[NUMBER] * 2, fastmath=ANY_ORDER)
def _activate(gates: Any, by_h: Any, before: Any, cells: Any, outputs: Any, count: Any, size: Any) -> None:
    # sigmoid(z) = (1 + tanh(z / 2)) / 2 does not overflow.
    width, two, three = _FOUR * size, _TWO * size, _THREE * size
    for row in range(count):
        first, at = row * width, row * size
        for j in range(width):
            gates[first + j] += by_h[first + j]
        for j in range(two):
            gates[first + j] *= _HALF
        for j in range(three, width):
            gates[first + j] *= _HALF
        tanh(gates[first : first + width])
        for j in range(two):
            gates[first + j] = _HALF + _HALF * gates[first + j]
        for j in range(three, width):
            gates[first + j] = _HALF + _HALF * gates[first + j]
        for j in range(size):
            cell = gates[first + size + j] * before[at + j] + gates[first + j] * gates[first + two + j]
            cells[at + j] = cell
            outputs[at + j] = cell
        tanh(outputs[at : at + size])
        for j in range(size):
            outputs[at + j] *= gates[first + three + j]


@compiled_once(READ, READ, READ, READ, FLAT, FLAT, *[NUMBER] * 2, fastmath=ANY_ORDER)
def _differentiate(
    gates: Any, before: Any, cells: Any, by_outputs: Any, by_cells: Any, by_gates: Any, count: Any, size: Any
) -> None:
    """Replace `by_cells`, the derivative by the cells after this step, by the derivative by the cells before it."""
    width, two, three = _FOUR * size, _TWO * size, _THREE * size
    for row in range(count):
        first, at = row * width, row * size
        for j in range(size):
            by_gates[first + three + j] = cells[at + j]
        tanh(by_gates[first + three : first + width])
        for j in range(size):
            i, f, g, o = (
                gates[first + j], gates[first + size + j], gates[first + two + j], gates[first + three + j],
            )  # fmt: skip
            squashed, by_output = by_gates[first + three + j], by_outputs[at + j]
            by_cell = by_cells[at + j] + by_output * o * (_UNIT - squashed * squashed)
            by_gates[first + j] = by_cell * g * i * (_UNIT - i)
            by_gates[first + size + j] = by_cell * before[at + j] * f * (_UNIT - f)
            by_gates[first + two + j] = by_cell * i * (_UNIT - g * g)
            by_gates[first + three + j] = by_output * squashed * o * (_UNIT - o)
            by_cells[at + j] = by_cell * f
