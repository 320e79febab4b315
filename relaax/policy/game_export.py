"""Export of a policy to a file for games without Python and a server: `rlx_policy.h`, `policy.js`, `policy.gd` read it.

The file, little-endian:

- `RLXP`, then three uint32: VERSION, the size of the header, and the CRC-32 of all bytes after these 16.
- The header, ASCII: lines of words, separated by one space. Integers are decimal. Lines that begin with # are comments.
- The arrays of float64, then the arrays of float32, in the order of the lines that use them, with all axes in C order.

The lines, in this order:

- `arrays DOUBLES FLOATS`: the counts of float64 and float32.
- For each leaf of an observation: `observation frames DTYPE COUNT HISTORY` (pixels; the network sees HISTORY
  frames), `bytes COUNT` (uint8 from 0 to 255), `numbers DTYPE COUNT`, `choices START N...` (int64, each as one-hot), or
  `mask DTYPE COUNT` (the action mask).
- `inputs plain COUNT` or `inputs normalized COUNT`: value 0, which concatenates frames, scaled to 0..1, and then the
  other leaves. Arrays: the limit to which inputs are clipped. Normalized: before it, mean and standard deviation.
- `dense ACTIVATION VALUE START INPUTS OUTPUTS`,
  `convolution ACTIVATION VALUE START HEIGHT WIDTH CHANNELS FILTERS KERNEL STRIDE`, `lstm VALUE CELLS` or
  `join VALUE VALUE`: the next value, computed from an earlier value, or from its numbers from START on. Arrays: kernel
  and bias, as in `NetworkSpec.layout`. ACTIVATION is `linear`, `relu` or `tanh`.
- `output NAME VALUE`: a head.
- For each leaf of an action: `action largest VALUE START N...` (int64), `action positive VALUE` (int8), or
  `action scaled plain|squashed DTYPE VALUE START COUNT`. Arrays of the last: centre, radius, low and high.

VERSION changes if the readers of the last version cannot read a file correctly.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.algorithm_base import Discrete, Space
from relaax.algorithm_base.acting.policy_graph import LargestOutputs, PolicyGraph, PositiveOutputs, ScaledOutput
from relaax.algorithm_base.network import is_image, looks_like_image, one_hot_sizes
from relaax.algorithm_base.normalization import INPUT_LIMIT
from relaax.policy.file import PolicyError
from relaax.policy.policy import Policy
from relaax.rlx.action_masks import choices_of

MAGIC = b"RLXP"
VERSION = 1
MOST_LINES = 256
"""Largest number of leaves of an observation, of values, of outputs, and of leaves of an action."""
MOST_NUMBERS = 1 << 26
"""Largest number of elements of all values together, and of elements of all stacked frames."""
MOST_INTEGER = 1 << 53
"""Largest magnitude of integers: JavaScript's numbers are exact up to here."""
_DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float32", "float64"]
_LARGEST = float(np.finfo(np.float64).max)


def game_file_of(policy: Policy) -> bytes:
    """Return the contents of the file. Raises PolicyError if its readers do not support the policy."""
    writer = _Writer(policy.graph(), policy.observation_space, policy.action_space)
    lines = writer.lines()
    doubles, floats = (np.concatenate([np.zeros(0), *arrays]) for arrays in (writer.doubles, writer.floats))
    description = policy.description
    comment = f"# {policy.algorithm} at global step {description.global_step}, checkpoint {description.checkpoint}"
    comment = re.sub(r"[^ -~]", "?", " ".join(comment.split()))
    header = "".join(f"{line}\n" for line in [comment, f"arrays {doubles.size} {floats.size}", *lines]).encode("ascii")
    body = header + doubles.astype("<f8").tobytes() + floats.astype("<f4").tobytes()
    return MAGIC + struct.pack("<3I", VERSION, len(header), zlib.crc32(body)) + body


class _Writer:
    """A writer of the lines and arrays. Methods that add a value return its index."""

    def __init__(self, graph: PolicyGraph, observation_space: Space, action_space: Space) -> None:
        self._graph, self._observation_space, self._action_space = graph, observation_space, action_space
        self._weights = graph.network.layout().views(graph.parameters)
        self._lines: list[str] = []
        self._sizes: list[int] = []  # of the values
        self.doubles: list[npt.NDArray[np.float64]] = []
        self.floats: list[npt.NDArray[np.float32]] = []

    def lines(self) -> list[str]:
        """Return the lines from observations to actions, and fill the arrays."""
        self._add_observation()
        heads = {}
        for trunk, names in self._graph.network.trunks().items():
            exported = [name for name in names if name in self._graph.heads]
            if exported:
                features = self._features(trunk)
                for name in exported:
                    own = self._stream(trunk, names, name, features) if self._graph.network.streams else features
                    heads[name] = self._dense("linear", own, name)
        for name, value in heads.items():
            if not re.fullmatch(r"[!-~]{1,64}", name):
                raise PolicyError(f"the output {name!r} needs a name of 1 to 64 ASCII characters without spaces")
            self._add("output", name, value)
        self._add_actions(heads)
        if sum(self._sizes) > MOST_NUMBERS:
            raise PolicyError(f"the network has {sum(self._sizes):,} activations, and at most {MOST_NUMBERS:,} fit")
        words = [line.split()[0] for line in self._lines]
        for word in ("observation", "output", "action"):
            if words.count(word) > MOST_LINES:
                raise PolicyError(f"the file needs {words.count(word)} lines {word!r}, and at most {MOST_LINES} fit")
        if len(self._sizes) > MOST_LINES:
            raise PolicyError(f"the network has {len(self._sizes)} layers, and at most {MOST_LINES} fit")
        return self._lines

    def _add_observation(self) -> None:
        elements = list(self._observation_space.elements())
        parts = [element for index, element in enumerate(elements) if index != self._graph.mask]
        image = 0 if len(parts) == 1 and is_image(parts[0]) else self._graph.image
        place = 0
        for index, element in enumerate(elements):
            dtype, count = self._dtype(element), math.prod(element.shape)
            if index == self._graph.mask:
                self._add("observation", "mask", dtype, count)
                continue
            if place == image:
                if count * self._graph.history > MOST_NUMBERS:
                    raise PolicyError(f"{self._graph.history} frames of {element} are too large for this format")
                self._add("observation", "frames", dtype, count, self._graph.history)
            elif sizes := one_hot_sizes(element):
                start = element.start if isinstance(element, Discrete) else 0
                self._add("observation", "choices", start, *sizes)
            elif looks_like_image(element) and element.dtype == np.uint8:
                self._add("observation", "bytes", count)
            else:
                self._add("observation", "numbers", dtype, count)
            place += 1
        count, mean, std = math.prod(self._graph.network.inputs), self._graph.mean, self._graph.std
        limit = np.array([INPUT_LIMIT])
        if mean is None or std is None:
            self._add("inputs", "plain", count)
            self.doubles.append(limit)
        else:
            self._add("inputs", "normalized", count)
            limit = np.minimum(limit, self._graph.limit)
            self.doubles += [np.broadcast_to(part, np.shape(mean)).reshape(-1) for part in (mean, std)] + [limit]
        self._sizes.append(count)

    def _features(self, trunk: str) -> int:
        """Add the layers of a trunk. `_stream` adds the layer of streams."""
        spec, value = self._graph.network, 0
        if spec.convolutions:
            height, width, channels = spec.convolved
            for index, layer in enumerate(spec.convolutions):
                shape = height, width, channels, layer.filters, layer.kernel, layer.stride
                height, width = ((side - layer.kernel) // layer.stride + 1 for side in (height, width))
                channels = layer.filters
                self._use(f"{trunk}conv{index}")
                size = height * width * channels
                value = self._value(size, "convolution", spec.activation, value, 0, *shape)
        if spec.side_width:
            side = self._dense(spec.activation, 0, f"{trunk}side", start=spec.pixels)
            value = self._value(self._sizes[value] + self._sizes[side], "join", value, side)
        for index in range(len(spec.dense) - spec.streams):
            value = self._dense(spec.activation, value, f"{trunk}dense{index}")
        if spec.lstm:
            self._use(f"{trunk}lstm")
            value = self._value(spec.lstm, "lstm", value, spec.lstm)
        return value

    def _stream(self, trunk: str, heads: tuple[str, ...], head: str, value: int) -> int:
        """Add a head's own part of the last dense layer. The file has no parts of heads that are not exported."""
        spec = self._graph.network
        layer = f"{trunk}dense{len(spec.dense) - 1}"
        return self._dense(spec.activation, value, layer, spec.stream(heads, head))

    def _dense(self, activation: str, value: int, layer: str, columns: slice = slice(None), start: int = 0) -> int:
        inputs, outputs = self._use(layer, columns)
        return self._value(outputs, "dense", activation, value, start, inputs, outputs)

    def _use(self, layer: str, columns: slice = slice(None)) -> Any:
        """Add the arrays of a layer. Return the shape of its kernel."""
        kernel, bias = (self._weights[f"{layer}/{part}"][..., columns] for part in ("kernel", "bias"))
        self.floats += [kernel.reshape(-1), bias]
        return kernel.shape

    def _add_actions(self, heads: dict[str, int]) -> None:
        elements: Iterator[Any] = iter(self._action_space.elements())
        for rule in self._graph.action:
            value = heads[rule.head]
            if isinstance(rule, ScaledOutput):
                self._add_scaled(rule, value, elements)
                continue
            element = next(elements)
            if isinstance(rule, PositiveOutputs):
                self._add("action", "positive", value)
            else:
                start = 0 if isinstance(rule, LargestOutputs) else rule.start
                self._add("action", "largest", value, start, *choices_of(element))

    def _add_scaled(self, rule: ScaledOutput, value: int, elements: Iterator[Any]) -> None:
        start = 0
        while start < len(rule.low):
            element = next(elements)
            end = start + math.prod(element.shape)
            kind = "squashed" if rule.squashed else "plain"
            self._add("action", "scaled", kind, self._dtype(element), value, start, end - start)
            # Readers need no infinite numbers, which -ffast-math does not support.
            self.doubles += [
                np.clip(np.asarray(part[start:end], np.float64), -_LARGEST, _LARGEST)
                for part in (rule.centre, rule.radius, rule.low, rule.high)
            ]
            start = end

    def _value(self, size: int, *words: Any) -> int:
        self._add(*words)
        self._sizes.append(size)
        return len(self._sizes) - 1

    def _add(self, *words: Any) -> None:
        for word in words:
            if isinstance(word, int) and abs(word) > MOST_INTEGER:
                raise PolicyError(f"the integer {word} of a space is beyond 2^53, which the exported file cannot have")
        self._lines.append(" ".join(map(str, words)))

    def _dtype(self, element: Any) -> str:
        name = str(element.dtype)
        if name not in _DTYPES:
            raise PolicyError(f"{element} cannot be exported to this format: use float32 instead of {name}")
        if not math.prod(element.shape):
            raise PolicyError(f"{element} has no elements, and each part needs at least one")
        return name
