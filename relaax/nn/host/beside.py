"""The layer for numbers beside an image, and how what comes of it is joined to what comes out of the convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.specification import NetworkSpec

Array = npt.NDArray[np.float32]


class Beside:
    """A dense layer of a trunk, `spec.beside` wide, of all inputs behind the image.

    What is joined are the outputs of the last convolution, then those of this layer: float32 [B, size + beside].
    """

    def __init__(self, spec: NetworkSpec, trunk: str) -> None:
        self._name = f"{trunk}beside"
        self._pixels, self._width = spec.pixels, spec.beside
        self._tanh = spec.activation == "tanh"
        self._kernel: Array = np.zeros((0, 0), np.float32)
        self._bias: Array = np.zeros(0, np.float32)

    def set_parameters(self, views: Mapping[str, Array]) -> None:
        self._kernel, self._bias = views[f"{self._name}/kernel"], views[f"{self._name}/bias"]

    def join(self, inputs: npt.NDArray[Any], convolved: Array, joined: Array) -> None:
        """Compute `joined`. Inputs float32 [B, *spec.inputs], what came out of the convolutions float32 [B, size]."""
        joined[:, : -self._width] = convolved
        y = joined[:, -self._width :]
        np.add(inputs[:, self._pixels :] @ self._kernel, self._bias, out=y)
        if self._tanh:
            np.tanh(y, out=y)
        else:
            np.maximum(y, 0, out=y)

    def backward(
        self, inputs: npt.NDArray[Any], joined: Array, gradient: Array, out: Mapping[str, Array], further: bool
    ) -> Array:
        """Return the gradient by the convolutions' outputs, float32 [B, size].

        That by the parameters goes into `out`, or is added if `further`. `gradient`: by what was joined, float32
        [B, size + beside].
        """
        y, by_y = joined[:, -self._width :], gradient[:, -self._width :]
        by_y = by_y * (1 - y * y) if self._tanh else by_y * (y > 0)
        by_kernel, by_bias = out[f"{self._name}/kernel"], out[f"{self._name}/bias"]
        if not further:
            by_kernel.fill(0)
            by_bias.fill(0)
        by_kernel += inputs[:, self._pixels :].T @ by_y
        by_bias += by_y.sum(axis=0)
        return np.ascontiguousarray(gradient[:, : -self._width])
