"""Dense networks for a few examples: all layers of all trunks in one call, forward and backward.

A network with two layers of 64 has 10,000 multiplications, which take one or two microseconds. With numpy, twenty calls
compute them in 30 microseconds. If the caches are cold, as with more workers than cores, the calls take three times as
long.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.machine_code import ANY_ORDER, FLAT, NUMBER, READ, ArrayType, compiled_once, inlined
from relaax.nn.host.kernels import tanh
from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]
Plan = npt.NDArray[np.uint64]
_PLAN = ArrayType("uint64", 2)

_ZERO, _ONE, _TWO, _THREE, _FOUR = (np.uint64(number) for number in range(5))

_NULL, _UNIT = np.float32(0), np.float32(1)


class Dense:
    """The layers of a network without convolutions, LSTM and streams.

    All outputs are in one flat array, by trunk and layer: [room, width] of the first layer, then of the second one, and
    so on. `room` is the number of examples that the array has room for. The heads of a trunk count as one layer.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        self._plan, self.heads, self.width = _plan(spec)
        self.multiplications = int((self._plan[:, _INPUTS] * self._plan[:, _OUTPUTS]).sum())
        """Multiplications of a forward pass of one example."""
        self._forward, self._backward = _forward(), _backward()

    def forward(self, parameters: Array, inputs: Array, memory: Array, room: int, start: int) -> None:
        """Compute the rows from `start` on in `memory`, float32 [room * width].

        `parameters`: float32 [P]. `inputs`: float32 [B, features].
        """
        self._forward(parameters, self._plan, inputs.reshape(-1), memory, room, start, len(inputs))

    def backward(
        self, parameters: Array, inputs: Array, memory: Array, room: int, start: int, by_outputs: Array, out: Array
    ) -> None:
        """Add the gradient by the parameters to `out`, float32 [P]. Call it with the arguments of `forward`.

        `by_outputs`: the gradient by the outputs, float32 [B * width], in the order of `memory`. The caller sets the
        part of the heads. The rest is overwritten.
        """
        self._backward(parameters, self._plan, inputs.reshape(-1), memory, room, start, len(inputs), by_outputs, out)


_INPUTS, _OUTPUTS = 2, 3


def _plan(spec: NetworkSpec) -> tuple[Plan, dict[str, tuple[int, int, slice]], int]:
    """Return a table for the kernels, uint64 [layers, 10], the positions of the heads, and the outputs per example.

    Each row is a dense layer or a head, in the order of computation. Its columns:

    kernel, bias: positions in the parameters. Their shapes are [inputs, outputs] and [outputs].
    inputs, outputs: number of the layer's inputs and of its outputs.
    source: number of an example's outputs before the layer's input.
    from_inputs: 1 if the input of the layer is the input of the network.
    target: number of an example's outputs before the layer's outputs.
    width: number of outputs at `target`, of this layer and, if it is a head, of the other heads of the trunk.
    column: the layer's first output among them.
    activation: 0 for none, 1 for relu, 2 for tanh.

    The position of a head is its target, width and columns.
    """
    starts, start = {}, 0
    for name, size in zip(spec.layout().shapes, spec.layout().sizes, strict=True):
        starts[name] = start
        start += size
    activation = {"relu": 1, "tanh": 2}[spec.activation]
    rows, places, target = [], {}, 0
    for trunk, heads in spec.trunks().items():
        taken, source, from_inputs = math.prod(spec.inputs), 0, 1
        for index, width in enumerate(spec.dense):
            kernel, bias = (starts[f"{trunk}dense{index}/{part}"] for part in ("kernel", "bias"))
            rows.append((kernel, bias, taken, width, source, from_inputs, target, width, 0, activation))
            taken, source, from_inputs, target = width, target, 0, target + width
        together, column = sum(spec.heads[head] for head in heads), 0
        for head in heads:
            kernel, bias, outputs = starts[f"{head}/kernel"], starts[f"{head}/bias"], spec.heads[head]
            rows.append((kernel, bias, taken, outputs, source, from_inputs, target, together, column, 0))
            places[head] = target, together, slice(column, column + outputs)
            column += outputs
        target += together
    return np.array(rows, np.uint64), places, target


def load_kernels() -> None:
    """Load all kernels before a fork."""
    _forward(), _backward()


def _multiply(x: Any, x_at: Any, kernel: Any, k_at: Any, inputs: Any, outputs: Any, y: Any, y_at: Any) -> None:
    """Add x @ kernel to y for one example, four inputs at a time."""
    whole = inputs - inputs % _FOUR
    for i in range(_ZERO, whole, _FOUR):
        a, b, c, d = x[x_at + i], x[x_at + i + _ONE], x[x_at + i + _TWO], x[x_at + i + _THREE]
        first = k_at + i * outputs
        second = first + outputs
        third = second + outputs
        fourth = third + outputs
        for j in range(outputs):
            y[y_at + j] += (a * kernel[first + j] + b * kernel[second + j]) + (
                c * kernel[third + j] + d * kernel[fourth + j]
            )
    for i in range(whole, inputs):
        a = x[x_at + i]
        first = k_at + i * outputs
        for j in range(outputs):
            y[y_at + j] += a * kernel[first + j]


def _outer(
    x: Any, x_at: Any, inputs: Any, gradient: Any, g_at: Any, width: Any, count: Any, outputs: Any, out: Any, at: Any
) -> None:
    """Add x.T @ gradient to out, four examples at a time."""
    whole = count - count % _FOUR
    for i in range(inputs):
        to = at + i * outputs
        for row in range(_ZERO, whole, _FOUR):
            place = x_at + row * inputs + i
            a, b, c, d = x[place], x[place + inputs], x[place + _TWO * inputs], x[place + _THREE * inputs]
            first = g_at + row * width
            second = first + width
            third = second + width
            fourth = third + width
            for j in range(outputs):
                out[to + j] += (a * gradient[first + j] + b * gradient[second + j]) + (
                    c * gradient[third + j] + d * gradient[fourth + j]
                )
        for row in range(whole, count):
            a = x[x_at + row * inputs + i]
            first = g_at + row * width
            for j in range(outputs):
                out[to + j] += a * gradient[first + j]


_multiply, _outer = inlined(_multiply, ANY_ORDER), inlined(_outer, ANY_ORDER)


@compiled_once(READ, _PLAN, READ, FLAT, *[NUMBER] * 3, fastmath=ANY_ORDER)
def _forward(parameters: Any, plan: Any, inputs: Any, memory: Any, room: Any, start: Any, count: Any) -> None:
    for index in range(len(plan)):
        kernel, bias, taken, outputs, source, from_inputs, target, width, column, activation = plan[index]
        for row in range(count):
            y_at = target * room + (start + row) * width + column
            for j in range(outputs):
                memory[y_at + j] = parameters[bias + j]
            if from_inputs:
                _multiply(inputs, row * taken, parameters, kernel, taken, outputs, memory, y_at)
            else:
                x_at = source * room + (start + row) * taken
                _multiply(memory, x_at, parameters, kernel, taken, outputs, memory, y_at)
        whole = target * room + start * width
        if activation == _ONE:
            for i in range(whole, whole + count * width):
                memory[i] = _NULL if memory[i] < _NULL else memory[i]  # nan stays nan
        elif activation == _TWO:
            tanh(memory[whole : whole + count * width])


@compiled_once(READ, _PLAN, READ, FLAT, *[NUMBER] * 3, FLAT, FLAT, fastmath=ANY_ORDER)
def _backward(
    parameters: Any, plan: Any, inputs: Any, memory: Any, room: Any, start: Any, count: Any, by_outputs: Any, out: Any
) -> None:
    # The outputs of a layer may be the input of several layers, whose gradients are summed.
    for index in range(len(plan)):
        if plan[index, 9]:
            for i in range(plan[index, 6] * count, (plan[index, 6] + plan[index, 7]) * count):
                by_outputs[i] = _NULL
    for index in range(len(plan) - 1, -1, -1):
        kernel, bias, taken, outputs, source, from_inputs, target, width, column, activation = plan[index]
        g_at = target * count + column
        if activation:  # the gradient before the activation
            y_at = target * room + start * width
            if activation == _ONE:
                for i in range(count * width):
                    by_outputs[g_at + i] = by_outputs[g_at + i] if memory[y_at + i] > _NULL else _NULL
            else:
                for i in range(count * width):
                    by_outputs[g_at + i] *= _UNIT - memory[y_at + i] * memory[y_at + i]
        for row in range(count):
            for j in range(outputs):
                out[bias + j] += by_outputs[g_at + row * width + j]
        if from_inputs:
            _outer(inputs, _ZERO, taken, by_outputs, g_at, width, count, outputs, out, kernel)
            continue
        x_at, e_at = (source * room + start * taken), source * count
        _outer(memory, x_at, taken, by_outputs, g_at, width, count, outputs, out, kernel)
        for row in range(count):
            for i in range(taken):
                total = _NULL
                for j in range(outputs):
                    total += by_outputs[g_at + row * width + j] * parameters[kernel + i * outputs + j]
                by_outputs[e_at + row * taken + i] += total
