"""A session of ONNX Runtime that acts with an exported policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

ENVIRONMENTS = 3


class ModelSession:
    """An ONNX model that receives its own outputs for the next step as inputs. `mask`: index of the mask's leaf."""

    def __init__(self, model: bytes, mask: int | None = None) -> None:
        self._mask = mask
        self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self._session.get_inputs()}
        self.outputs = [value.name for value in self._session.get_outputs()]
        # Any values are valid before the first episode.
        self._state = {
            name: np.full([ENVIRONMENTS, *value.shape[1:]], 99, np.uint8 if name == "frames" else np.float32)
            for name, value in self.inputs.items()
            if name in ("frames", "memory")
        }

    def step(self, observations: list[npt.NDArray[Any]], first: npt.NDArray[np.bool_]) -> dict[str, npt.NDArray[Any]]:
        names = [name for name in self.inputs if name.startswith("observation")]
        observations, given = list(observations), dict(self._state)
        if self._mask is not None:
            given["action_mask"] = observations.pop(self._mask)
        given |= zip(names, observations, strict=True)
        if "first" in self.inputs:
            given["first"] = first
        found = dict(zip(self.outputs, self._session.run(None, given), strict=True))
        self._state = {name: found[f"next_{name}"] for name in self._state}
        return found
