"""Export of a policy to ONNX, for programs that act without Python, such as a game engine or a robot.

Inputs, each for N environments:

- `observation`, or `observation.0`, `observation.1`, ... if the space has several parts besides the action mask.
- `action_mask`, if the space has one: 0 for actions that are not valid.
- `frames` uint8 [N, *frame, history], if the network sees several frames of an image.
- `memory` float32 [N, 2 C], if there is an LSTM.
- `first` bool [N], if there are `frames` or `memory`: whether an episode starts. If so, both may have any values.

Outputs:

- `action`, or `action.0`, `action.1`, ...: the greedy action.
- the heads' outputs, such as `policy`, from which a program can sample actions. Those of invalid actions are -1e30.
- `next_frames` and `next_memory`: the inputs `frames` and `memory` of the next step.

The model includes the normalisation of observations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Box, Discrete, Space
from relaax.algorithm_base.acting.policy_graph import (
    LargestOutput,
    LargestOutputs,
    PolicyGraph,
    PositiveOutputs,
    ScaledOutput,
)
from relaax.algorithm_base.network import is_image, looks_like_image, one_hot_sizes
from relaax.libraries import explained
from relaax.nn.distributions import LEAST_VALID, MASKED
from relaax.policy.policy import Policy
from relaax.rlx.action_masks import choices_of

OPSET = 17
_BATCH = "N"
_LARGEST = float(np.finfo(np.float32).max)


def onnx_of(policy: Policy) -> bytes:
    """Return the ONNX model. Raises PolicyError if the algorithm does not describe its network."""
    with explained("onnx"):
        import onnx

    graph = policy.graph()
    builder = _Builder(graph, policy.observation_space, policy.action_space)
    builder.build()
    helper = onnx.helper
    made = helper.make_graph(builder.nodes, "policy", builder.inputs, builder.outputs, builder.constants)
    model = helper.make_model(made, producer_name="relaax", opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 8  # from the year of the opset, so that engines with older readers accept it
    description = policy.description
    facts = {
        "algorithm": policy.algorithm,
        "checkpoint": description.checkpoint,
        "global_step": description.global_step,
        "mean_return": description.mean_return,
    }
    helper.set_model_props(model, {"relaax": json.dumps(facts)})
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


class _Builder:
    """A builder of an ONNX graph. Its methods add nodes, and take and return names of values."""

    def __init__(self, graph: PolicyGraph, observation_space: Space, action_space: Space) -> None:
        import onnx

        self._helper, self._onnx = onnx.helper, onnx
        self._graph, self._observation_space, self._action_space = graph, observation_space, action_space
        self._weights = graph.network.layout().views(graph.parameters)
        self._activation = {"relu": "Relu", "tanh": "Tanh"}[graph.network.activation]
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._first: str | None = None
        self._valid: list[str] = []  # for each choice, which actions are valid
        self._count = 0

    def build(self) -> None:
        """Add all nodes, from observations to actions."""
        x = self._encoded()
        if self._graph.mean is not None and self._graph.std is not None:
            x = self._standardized(x, self._graph.mean, self._graph.std)
        heads = {}
        for trunk, names in self._graph.network.trunks().items():
            exported = [name for name in names if name in self._graph.heads]
            if exported:
                features = self._features(trunk, x)
                for name in exported:
                    own = self._stream(trunk, names, name, features) if self._graph.network.streams else features
                    heads[name] = self._dense(own, name)
        self._add_action(heads)

    def _encoded(self) -> str:
        """Return the network's inputs: images as float32 [N, H, W, C] from 0 to 1, all others as float32 [N, D]."""
        elements = list(self._observation_space.elements())
        if self._graph.mask is not None:
            self._read_mask(elements.pop(self._graph.mask))
        names = ["observation"] if len(elements) == 1 else [f"observation.{i}" for i in range(len(elements))]
        leaves = [self._input(name, part.dtype, part.shape) for name, part in zip(names, elements, strict=True)]
        if len(elements) == 1 and is_image(elements[0]):
            return self._reshape(self._image(leaves[0], elements[0]), [-1, *self._graph.network.inputs])
        image = self._graph.image
        parts = [] if image is None else [self._node("Flatten", self._image(leaves[image], elements[image]), axis=1)]
        parts += [self._flat(leaves[i], element) for i, element in enumerate(elements) if i != image]
        return parts[0] if len(parts) == 1 else self._node("Concat", *parts, axis=1)

    def _read_mask(self, element: Any) -> None:
        """Add the input of the action mask, and set `_valid`."""
        mask = self._cast(self._input("action_mask", element.dtype, element.shape), np.bool_)
        choices = choices_of(self._action_space)
        flat = self._reshape(mask, [-1, sum(choices)])
        self._valid = [flat] if len(choices) == 1 else self._split(flat, list(choices))

    def _flat(self, leaf: str, element: Any) -> str:
        if sizes := one_hot_sizes(element):
            start = element.start if isinstance(element, Discrete) else 0
            columns = self._split(self._reshape(leaf, [-1, len(sizes)]), [1] * len(sizes)) if sizes[1:] else [leaf]
            hot = [
                self._cast(
                    self._node("Equal", self._reshape(column, [-1, 1]), self._constant(np.arange(start, start + size))),
                    np.float32,
                )
                for column, size in zip(columns, sizes, strict=True)
            ]
            return hot[0] if len(hot) == 1 else self._node("Concat", *hot, axis=1)
        if element.dtype == np.float64:  # its range is larger than that of float32
            leaf = self._node("Clip", leaf, self._constant(np.float64(-_LARGEST)), self._constant(np.float64(_LARGEST)))
        flat = self._reshape(self._cast(leaf, np.float32), [-1, math.prod(element.shape)])
        is_picture = looks_like_image(element) and element.dtype == np.uint8
        return self._node("Div", flat, self._constant(np.float32(255))) if is_picture else flat

    def _image(self, frame: str, element: Space) -> str:
        assert isinstance(element, Box)
        if element.dtype == np.bool_:
            frame = self._node("Mul", self._cast(frame, np.uint8), self._constant(np.uint8(255)))
        history, newest = self._graph.history, self._node("Unsqueeze", frame, self._constant(np.array([-1])))
        stack = newest
        if history > 1:
            frames = self._input("frames", np.uint8, (*element.shape, history))
            ones = [1] * (len(element.shape) + 1)
            filled = self._node("Tile", newest, self._constant(np.array([*ones, history])))
            starts, ends, axes = (self._constant(np.array([value])) for value in (1, history, len(ones)))
            shifted = self._node("Concat", self._node("Slice", frames, starts, ends, axes), newest, axis=-1)
            stack = self._node("Where", self._reshape(self._first_input(), [-1, *ones]), filled, shifted)
            stack = self._output(stack, "next_frames", np.uint8, (*element.shape, history))
        return self._node("Div", self._cast(stack, np.float32), self._constant(np.float32(255)))

    def _standardized(self, x: str, mean: npt.NDArray[Any], std: npt.NDArray[Any]) -> str:
        x = self._node("Sub", self._cast(x, np.float64), self._constant(np.asarray(mean, np.float64)))
        x = self._node("Div", x, self._constant(np.asarray(std, np.float64)))
        limit = self._graph.limit
        if math.isfinite(limit):
            x = self._node("Clip", x, self._constant(np.float64(-limit)), self._constant(np.float64(limit)))
        return self._cast(x, np.float32)

    def _features(self, trunk: str, x: str) -> str:
        """Return the outputs of a trunk, float32 [N, width]. `_stream` adds the layer of streams."""
        spec, activation, side = self._graph.network, self._activation, None
        if spec.image:
            x, *numbers = self._split(x, [spec.pixels, spec.side_numbers]) if spec.side_width else [x]
            side = self._node(activation, self._dense(numbers[0], f"{trunk}side")) if numbers else None
            x = self._reshape(x, [-1, *spec.image])
        if spec.convolutions:
            x = self._node("Transpose", x, perm=[0, 3, 1, 2])  # ONNX has the channels first
            for index, layer in enumerate(spec.convolutions):
                kernel = self._constant(self._weights[f"{trunk}conv{index}/kernel"].transpose(3, 2, 0, 1))
                bias = self._constant(self._weights[f"{trunk}conv{index}/bias"])
                x = self._node(activation, self._node("Conv", x, kernel, bias, strides=[layer.stride] * 2))
            x = self._node("Transpose", x, perm=[0, 2, 3, 1])
            x = self._node("Flatten", x, axis=1)
        if side is not None:
            x = self._node("Concat", x, side, axis=1)
        for index in range(len(spec.dense) - spec.streams):
            x = self._node(activation, self._dense(x, f"{trunk}dense{index}"))
        return self._lstm(trunk, x) if spec.lstm else x

    def _stream(self, trunk: str, heads: tuple[str, ...], head: str, x: str) -> str:
        """Return a head's own part of the last dense layer. The file has no parts of heads that are not exported."""
        spec = self._graph.network
        layer = f"{trunk}dense{len(spec.dense) - 1}"
        return self._node(self._activation, self._dense(x, layer, spec.stream(heads, head)))

    def _lstm(self, trunk: str, x: str) -> str:
        """Return h after a step, computed like `relaax.nn.numpy_actor.lstm_numpy`."""
        cells = self._graph.network.lstm
        memory = self._input("memory", np.float32, (2 * cells,))
        first = self._reshape(self._first_input(), [-1, 1])
        memory = self._node("Where", first, self._constant(np.float32(0)), memory)
        h, c = self._split(memory, [cells, cells])
        gates = self._split(self._dense(self._node("Concat", x, h, axis=1), f"{trunk}lstm"), [cells] * 4)
        i, f, o = (self._node("Sigmoid", gates[index]) for index in (0, 1, 3))
        kept = self._node("Mul", f, c)
        c = self._node("Add", kept, self._node("Mul", i, self._node("Tanh", gates[2])))
        h = self._node("Mul", o, self._node("Tanh", c))
        self._output(self._node("Concat", h, c, axis=1), "next_memory", np.float32, (2 * cells,))
        return h

    def _add_action(self, heads: dict[str, str]) -> None:
        """Add the outputs of the heads and of the leaves of the action."""
        elements = list(self._action_space.elements())
        names = ["action"] if len(elements) == 1 else [f"action.{number}" for number in range(len(elements))]
        leaves = iter(zip(names, elements, strict=True))
        valid = iter(self._valid)
        for rule in self._graph.action:
            if isinstance(rule, ScaledOutput):
                self._add_scaled_action(rule, heads.pop(rule.head), leaves)
                continue
            name, element = next(leaves)
            values = heads.pop(rule.head)
            if isinstance(rule, PositiveOutputs):
                action = self._cast(self._node("Greater", values, self._constant(np.float32(0))), np.int8)
            else:
                choices = rule.choices if isinstance(rule, LargestOutputs) else choices_of(element)
                parts = [values] if len(choices) == 1 else self._split(values, list(choices))
                if self._valid:
                    parts = [self._masked(next(valid), part) for part in parts]
                    values = parts[0] if len(parts) == 1 else self._node("Concat", *parts, axis=1)
                indices = [self._node("ArgMax", part, axis=1, keepdims=1) for part in parts]
                action = indices[0] if len(indices) == 1 else self._node("Concat", *indices, axis=1)
                if isinstance(rule, LargestOutput):
                    action = self._node("Add", action, self._constant(np.int64(rule.start)))
            self._add_head(rule.head, values)
            self._output(self._reshape(action, [-1, *element.shape]), name, element.dtype, element.shape)
        for head, values in heads.items():  # that no rule uses, such as variances
            self._add_head(head, values)

    def _masked(self, valid: str, values: str) -> str:
        bounded = self._node("Max", values, self._constant(LEAST_VALID))
        return self._node("Where", valid, bounded, self._constant(MASKED))

    def _add_head(self, head: str, values: str) -> None:
        self._output(values, head, np.float32, (self._graph.network.heads[head],))

    def _add_scaled_action(self, action: ScaledOutput, values: str, leaves: Iterator[tuple[str, Any]]) -> None:
        """Add the leaves of real numbers that `action` computes."""
        self._add_head(action.head, values)
        if action.squashed:
            values = self._node("Tanh", values)
        scaled = self._node("Mul", self._cast(values, np.float64), self._constant(action.radius))
        scaled = self._node("Add", scaled, self._constant(action.centre))
        scaled = self._node("Max", scaled, self._constant(np.asarray(action.low, np.float64)))
        scaled = self._node("Min", scaled, self._constant(np.asarray(action.high, np.float64)))
        covered, left = [], len(action.low)
        while left:
            covered.append(next(leaves))
            left -= math.prod(covered[-1][1].shape)
        sizes = [math.prod(element.shape) for _, element in covered]
        parts = [scaled] if len(covered) == 1 else self._split(scaled, sizes)
        for part, (name, element) in zip(parts, covered, strict=True):
            shaped = self._reshape(self._cast(part, element.dtype), [-1, *element.shape])
            self._output(shaped, name, element.dtype, element.shape)

    def _first_input(self) -> str:
        if self._first is None:
            self._first = self._input("first", np.bool_, ())
        return self._first

    def _dense(self, x: str, layer: str, columns: slice = slice(None)) -> str:
        kernel, bias = (self._constant(self._weights[f"{layer}/{part}"][..., columns]) for part in ("kernel", "bias"))
        return self._node("Gemm", x, kernel, bias)

    def _split(self, x: str, sizes: list[int]) -> list[str]:
        names = [self._name("split") for _ in sizes]
        node = self._helper.make_node("Split", [x, self._constant(np.array(sizes))], names, axis=1)
        self.nodes.append(node)
        return names

    def _cast(self, x: str, dtype: npt.DTypeLike) -> str:
        return self._node("Cast", x, to=self._type(dtype))

    def _reshape(self, x: str, shape: list[int]) -> str:
        return self._node("Reshape", x, self._constant(np.array(shape)))

    def _node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = self._name(operator.lower())
        self.nodes.append(self._helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def _constant(self, value: Any) -> str:
        name = self._name("constant")
        self.constants.append(
            self._onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name)
        )
        return name

    def _input(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> str:
        self.inputs.append(self._helper.make_tensor_value_info(name, self._type(dtype), [_BATCH, *shape]))
        return name

    def _output(self, x: str, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> str:
        self.nodes.append(self._helper.make_node("Identity", [x], [name]))
        self.outputs.append(self._helper.make_tensor_value_info(name, self._type(dtype), [_BATCH, *shape]))
        return name

    def _type(self, dtype: npt.DTypeLike) -> int:
        code: int = self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        return code

    def _name(self, what: str) -> str:
        self._count += 1
        return f"{what}_{self._count}"
