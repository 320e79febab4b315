"""The network in numpy, for who acts and does not learn: it needs no other library."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.networks import NetworkSpec, forward_numpy

Array = npt.NDArray[np.float32]


class NumpyModel:
    """See `model.Model`. It acts only."""

    def __init__(self, spec: NetworkSpec) -> None:
        self._spec = spec
        self._layout = spec.layout()
        self._views: dict[str, Array] = {}

    def set_parameters(self, parameters: Array) -> None:
        """See `Model`."""
        self._views = self._layout.views(parameters)

    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        """See `Model`. Nothing is kept."""
        if inputs.dtype == np.uint8:
            inputs = inputs.astype(np.float32)
            inputs /= np.float32(255)
        return forward_numpy(self._spec, self._views, inputs, state)
