"""The specification of a network, feed-forward or with an LSTM, and the layout of its parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Activation = Literal["relu", "tanh"]


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution without padding. `kernel` and `stride`: pixels in both directions."""

    filters: int
    kernel: int
    stride: int


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """A network: convolutions (for images), dense layers, an optional LSTM, and one linear head per output.

    inputs: shape of one example: [height, width, channels] with convolutions, else [features].
    heads: names and widths of the outputs.
    groups: heads that share a trunk. A trunk is all layers before the heads. Without groups, all heads share one trunk.
    lstm: number of cells, or 0.
    streams: each head has its own part (stream) of the trunk's last dense layer. The width in `dense` is that of one
      stream. With heads for the value and the advantages, this is the dueling network (Wang et al. 2016) with shared
      convolutions.
    image: shape of an image that is given together with side numbers. [features] are then the pixels, from 0 to 1,
      followed by the side numbers.
    side_width: width of the dense layer for the side numbers. Its outputs are joined to those of the convolutions.
    """

    inputs: tuple[int, ...]
    heads: Mapping[str, int]
    dense: tuple[int, ...]
    convolutions: tuple[Convolution, ...] = ()
    activation: Activation = "relu"
    groups: tuple[tuple[str, ...], ...] = ()
    lstm: int = 0
    streams: bool = False
    image: tuple[int, ...] = ()
    side_width: int = 0

    @property
    def convolved(self) -> tuple[int, ...]:
        """Shape of the input of the convolutions: [height, width, channels]."""
        return self.image or self.inputs

    @property
    def pixels(self) -> int:
        """Number of inputs that are pixels of `image`; 0 without `image`."""
        return math.prod(self.image) if self.image else 0

    @property
    def side_numbers(self) -> int:
        """Number of side numbers, which follow the pixels of `image`; 0 without `image`."""
        return self.inputs[0] - self.pixels if self.image else 0

    @property
    def state_size(self) -> int:
        """Size of the LSTM state of one environment: h and c of each trunk, concatenated."""
        return 2 * self.lstm * len(self.trunks())

    def layout(self) -> FlatLayout:
        """Return names and shapes of the parameters.

        Raises ValueError if an image is too small for the convolutions, if a head is not in exactly one group, if
        there are streams without a dense layer or with an LSTM, or if `image` has no convolutions or no width for its
        side numbers.
        """
        if self.streams and (self.lstm or not self.dense):
            raise ValueError(
                "streams cannot be combined with an LSTM: use only one of them"
                if self.lstm
                else "streams need a dense layer: give `dense` at least one width"
            )
        if self.image and not (
            self.convolutions and self.side_numbers >= 0 and bool(self.side_numbers) == bool(self.side_width)
        ):
            raise ValueError(
                f"an image of {list(self.image)} among {self.inputs[0]} inputs needs convolutions, and a `side_width` "
                "if and only if there are more inputs than pixels"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for trunk, heads in self.trunks().items():
            width = self._trunk_shapes(trunk, heads, shapes)
            for head in heads:
                shapes[f"{head}/kernel"] = (width, self.heads[head])
                shapes[f"{head}/bias"] = (self.heads[head],)
        return FlatLayout(shapes)

    def trunks(self) -> dict[str, tuple[str, ...]]:
        """Return the heads of each trunk by the trunk's name prefix. Raises ValueError like `layout`."""
        if not self.groups:
            return {"": tuple(self.heads)}
        if sorted(head for group in self.groups for head in group) != sorted(self.heads) or () in self.groups:
            raise ValueError(
                f"each of the heads {list(self.heads)} must be in exactly one group, not {list(self.groups)}"
            )
        if len(self.groups) == 1:
            return {"": self.groups[0]}
        return {f"{group[0]}/": group for group in self.groups}

    def dense_widths(self, heads: tuple[str, ...]) -> tuple[int, ...]:
        """Return the widths of the dense layers of a trunk. `heads`: the trunk's heads."""
        return (*self.dense[:-1], self.dense[-1] * len(heads)) if self.streams else self.dense

    def stream(self, heads: tuple[str, ...], head: str) -> slice:
        """Return the features of a trunk that `head` uses: its stream, or all features if there are no streams.

        `heads`: the trunk's heads.
        """
        if not self.streams:
            return slice(None)
        width = self.dense[-1]
        start = heads.index(head) * width
        return slice(start, start + width)

    def _trunk_shapes(self, trunk: str, heads: tuple[str, ...], shapes: dict[str, tuple[int, ...]]) -> int:
        """Add the shapes of a trunk to `shapes`. Return the number of features that each of its heads uses."""
        if self.convolutions:
            height, width, channels = self.convolved
            for index, layer in enumerate(self.convolutions):
                shapes[f"{trunk}conv{index}/kernel"] = (layer.kernel, layer.kernel, channels, layer.filters)
                shapes[f"{trunk}conv{index}/bias"] = (layer.filters,)
                height, width = ((side - layer.kernel) // layer.stride + 1 for side in (height, width))
                channels = layer.filters
                if height < 1 or width < 1:
                    raise ValueError(
                        f"an image of {list(self.convolved)} is too small for convolution {index}, {layer}"
                    )
            features = height * width * channels
            if self.side_width:
                shapes[f"{trunk}side/kernel"] = (self.side_numbers, self.side_width)
                shapes[f"{trunk}side/bias"] = (self.side_width,)
                features += self.side_width
        else:
            features = math.prod(self.inputs)
        for index, width in enumerate(self.dense_widths(heads)):
            shapes[f"{trunk}dense{index}/kernel"] = (features, width)
            shapes[f"{trunk}dense{index}/bias"] = (width,)
            features = width
        if self.lstm:
            shapes[f"{trunk}lstm/kernel"] = (features + self.lstm, 4 * self.lstm)
            shapes[f"{trunk}lstm/bias"] = (4 * self.lstm,)
            features = self.lstm
        return self.dense[-1] if self.streams else features


Array = npt.NDArray[np.float32]


class FlatLayout:
    """Position of each named array in the flat vector. The arrays are concatenated in the given order."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self.sizes)

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the named arrays as views of `vector`, float32 [size]. Raises ValueError if the length differs."""
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape ({self.size},) is needed, not {vector.shape}")
        views, start = {}, 0
        for (name, shape), size in zip(self.shapes.items(), self.sizes, strict=True):
            views[name] = vector[start : start + size].reshape(shape)
            start += size
        return views

    def join(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Array:
        """Return the flat vector made of the named arrays, the reverse of `views`."""
        vector = np.empty(self.size, np.float32)
        for name, view in self.views(vector).items():
            view[...] = arrays[name]
        return vector


class JoinedLayout:
    """Positions of several networks, and of single numbers, in one flat vector, concatenated in the given order."""

    def __init__(self, parts: Mapping[str, NetworkSpec | int]) -> None:
        """`parts`: by name, the network, or the count of numbers."""
        self.slices: dict[str, slice] = {}
        self.size = 0
        for name, part in parts.items():
            size = part if isinstance(part, int) else part.layout().size
            self.slices[name] = slice(self.size, self.size + size)
            self.size += size

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the parts as views of `vector`, float32 [size]. Raises ValueError if the length differs."""
        if vector.shape != (self.size,):
            raise ValueError(f"networks of {self.size} numbers cannot be views of a vector {vector.shape}")
        return {name: vector[where] for name, where in self.slices.items()}
