"""The interface of all engines, as an agent uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Outputs = Mapping[str, Array]
"""Head name -> float32 [B, width]."""

Loss = Callable[[Outputs, slice], Outputs]
"""`loss(outputs, part)` returns the derivative of the loss by the outputs of the examples `part`, in the same form.

Examples are numbered over steps and environments, [T * N]. The engine calls it for one or more parts, which contain
each example once.
"""


def checked_derivatives(derivatives: Outputs, outputs: Outputs) -> Outputs:
    """Return `derivatives`. Raise ValueError with the head's name if they do not have the form of `outputs`."""
    if not isinstance(derivatives, Mapping):
        raise ValueError(f"a loss must return a dict with its derivative by each head's outputs, not {derivatives!r}")
    for head, output in outputs.items():
        if head not in derivatives:
            there = ", ".join(derivatives) or "nothing"
            raise ValueError(f"a loss must return its derivative by the outputs of head {head!r}: it returned {there}")
        shape = np.shape(derivatives[head])
        if shape != output.shape:
            raise ValueError(
                f"the loss's derivative by head {head!r} has shape {shape}; the outputs have {output.shape}"
            )
    return derivatives


class Actor(ABC):
    """A network with parameters that computes outputs for a batch."""

    @abstractmethod
    def set_parameters(self, parameters: Array, mean: Array | None = None) -> None:
        """Use these parameters, float32 [P]. Raises ValueError if the length is wrong.

        `mean`: float32 [*spec.inputs], the mean of pixels from 0 to 255. It is subtracted from inputs of uint8 before
        they are scaled; None to subtract nothing. Neither array may change later.
        """

    @abstractmethod
    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        """Compute the outputs for one step of N environments.

        Args:
          inputs: [N, *spec.inputs], float32, or uint8 for pixels. Pixels are scaled by 1 / 255, after `mean`.
          state: float32 [N, spec.state_size], the state of an LSTM; zero if an episode starts.
          keep: the row that these inputs will have in the batch of the next gradient. If the parameters do not change,
            that gradient reuses the result. This saves time and does not change the gradient. Before that gradient, do
            not pass other inputs for the same row.

        Returns:
          head name -> float32 [N, width], and the state after the step, float32 [N, spec.state_size].
        """


class Engine(Actor):
    """An actor that also computes the gradient of a batch."""

    def forget(self) -> None:
        """Discard the results that `act` kept, as the next batch has other inputs in their rows."""

    @abstractmethod
    def gradient(
        self,
        inputs: npt.NDArray[Any],
        state: Array,
        restart: npt.NDArray[np.bool_],
        loss: Loss,
        out: Array | None = None,
    ) -> Array:
        """Compute the gradient of a loss over T steps of N environments by the parameters, float32 [P].

        Args:
          inputs: [T, N, *spec.inputs].
          state: float32 [N, spec.state_size], before the first step.
          restart: bool [T, N], True if an input starts an episode: the state before it is zero.
          loss: returns the derivative of the loss by the outputs.
          out: float32 [P], memory for the result. TensorFlow's engine ignores it.
        """

    @abstractmethod
    def input_gradient(self, inputs: npt.NDArray[Any], loss: Loss) -> Array:
        """Compute the derivative of a loss by the inputs of a network without an LSTM, float32 [B, features].

        With convolutions, it is the derivative by the side numbers only, float32 [B, side numbers]. `inputs`: float32
        [B, features]. The caller must not change the result, which is valid until the next call.
        """
