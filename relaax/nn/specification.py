"""The specification of a network, feed-forward or with an LSTM, and the layout of its parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Activation = Literal["relu", "tanh"]


@dataclass(frozen=True, slots=True)
class Convolution:
    """One convolution without padding: so many square filters, moved by so many pixels."""

    filters: int
    kernel: int
    stride: int


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """Convolutions (for images), then dense layers, then an LSTM if wanted, then one linear head per output.

    `inputs` is the shape of one example: [height, width, channels] with convolutions, else [features].
    `heads` are names and widths of the outputs. `groups` are the heads that share a trunk, which is all that stands
    before the heads; without groups all heads share one. `lstm` is the number of cells, 0 for none.
    `streams`: each head of a trunk has a part of its own of the last dense layer, as wide as `dense` says, so that the
    layer is as many times as wide as there are heads. With heads for the value and the advantages that is the dueling
    network (Wang et al. 2016), whose convolutions are shared.
    `image` is the shape of an image with numbers beside it: [features] are then its pixels, from 0 to 1, and behind
    them these numbers, which go through a dense layer of their own, `beside` wide. Its outputs are joined to those of
    the convolutions.
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
    beside: int = 0

    @property
    def convolved(self) -> tuple[int, ...]:
        """The shape of what convolutions take in: [height, width, channels]."""
        return self.image or self.inputs

    @property
    def pixels(self) -> int:
        """How many of the inputs are an image that has numbers beside it; 0 if there is none."""
        return math.prod(self.image) if self.image else 0

    @property
    def numbers(self) -> int:
        """How many numbers stand beside an image."""
        return self.inputs[0] - self.pixels if self.image else 0

    @property
    def state_size(self) -> int:
        """Numbers that an LSTM remembers of one environment: h and c of each trunk, one trunk after the other."""
        return 2 * self.lstm * len(self.trunks())

    def layout(self) -> FlatLayout:
        """Return names and shapes of the parameters.

        Raises ValueError if an image is too small for the convolutions, a head is not in exactly one group, there are
        streams without a dense layer or with an LSTM, or numbers beside an image without convolutions or a width.
        """
        if self.streams and (self.lstm or not self.dense):
            raise ValueError(
                "streams are parts of the last dense layer, and heads stand on "
                + ("the LSTM behind it: use one of the two" if self.lstm else "no such layer: give `dense` a width")
            )
        if self.image and not (self.convolutions and self.numbers >= 0 and bool(self.numbers) == bool(self.beside)):
            raise ValueError(
                f"an image of {list(self.image)} among {self.inputs[0]} inputs needs convolutions, and a width for "
                "what is beside it, if there is anything"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for trunk, heads in self.trunks().items():
            width = self._trunk_shapes(trunk, heads, shapes)
            for head in heads:
                shapes[f"{head}/kernel"] = (width, self.heads[head])
                shapes[f"{head}/bias"] = (self.heads[head],)
        return FlatLayout(shapes)

    def trunks(self) -> dict[str, tuple[str, ...]]:
        """Name prefix of each trunk, and the heads that stand on it. Raises ValueError as `layout` does."""
        if not self.groups:
            return {"": tuple(self.heads)}
        if sorted(head for group in self.groups for head in group) != sorted(self.heads) or () in self.groups:
            raise ValueError(f"each of the heads {list(self.heads)} belongs into one group, not {list(self.groups)}")
        if len(self.groups) == 1:
            return {"": self.groups[0]}
        return {f"{group[0]}/": group for group in self.groups}

    def dense_widths(self, heads: tuple[str, ...]) -> tuple[int, ...]:
        """Return the widths of the dense layers below these heads, which are those of a trunk."""
        return (*self.dense[:-1], self.dense[-1] * len(heads)) if self.streams else self.dense

    def stream(self, heads: tuple[str, ...], head: str) -> slice:
        """Return which features of a trunk with these heads one of them stands on: its own, or without streams all."""
        if not self.streams:
            return slice(None)
        width = self.dense[-1]
        start = heads.index(head) * width
        return slice(start, start + width)

    def _trunk_shapes(self, trunk: str, heads: tuple[str, ...], shapes: dict[str, tuple[int, ...]]) -> int:
        """Add the shapes of a trunk; return how many features each of its heads stands on."""
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
            if self.beside:
                shapes[f"{trunk}beside/kernel"] = (self.numbers, self.beside)
                shapes[f"{trunk}beside/bias"] = (self.beside,)
                features += self.beside
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
    """Where each named array stands in the flat vector: one after the other, in the order given."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = dict(shapes)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size = sum(self.sizes)

    def views(self, vector: Array) -> dict[str, Array]:
        """Return the named arrays as views of `vector`, float32 [size]. Raises ValueError if the length differs."""
        if vector.shape != (self.size,):
            raise ValueError(f"a vector of shape ({self.size},) is needed, not {vector.shape}")
        return dict(self._slices(vector))

    def _slices(self, vector: Array) -> Iterator[tuple[str, Array]]:
        start = 0
        for (name, shape), size in zip(self.shapes.items(), self.sizes, strict=True):
            yield name, vector[start : start + size].reshape(shape)
            start += size

    def join(self, arrays: Mapping[str, npt.NDArray[Any]]) -> Array:
        """Return the flat vector made of the named arrays, the reverse of `views`."""
        vector = np.empty(self.size, np.float32)
        for name, view in self.views(vector).items():
            view[...] = arrays[name]
        return vector
