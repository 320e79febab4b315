"""What computes a network, for an agent: the interface of all engines."""

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
"""`loss(outputs, part)` gives the derivative of the loss by the outputs of the examples `part`, in the same form.

Examples are counted over steps and environments, [T * N]. Each is asked for once, in as many parts as the engine likes.
"""


def checked_derivatives(derivatives: Outputs, outputs: Outputs) -> Outputs:
    """Return what a loss returned. Raise ValueError that names the head if it is not in the form of `outputs`."""
    if not isinstance(derivatives, Mapping):
        raise ValueError(f"a loss returns a dict, its derivative by each head's outputs, not {derivatives!r}")
    for head, output in outputs.items():
        if head not in derivatives:
            there = ", ".join(derivatives) or "nothing"
            raise ValueError(f"a loss returns its derivative by the outputs of head {head!r} too, not only {there}")
        shape = np.shape(derivatives[head])
        if shape != output.shape:
            raise ValueError(
                f"the loss's derivative by head {head!r} has shape {shape}; the outputs have {output.shape}"
            )
    return derivatives


class Actor(ABC):
    """Act on a batch: a network with parameters."""

    @abstractmethod
    def set_parameters(self, parameters: Array) -> None:
        """Take float32 [P], which must not change any more. Raises ValueError if its length is not the network's."""

    @abstractmethod
    def act(self, inputs: npt.NDArray[Any], state: Array, keep: int | None = None) -> tuple[dict[str, Array], Array]:
        """Compute the outputs for one step of N environments.

        Args:
          inputs: [N, *spec.inputs], float32, or uint8 for pixels, which the network is given from 0 to 1.
          state: float32 [N, spec.state_size], what an LSTM remembers; zero if an episode starts.
          keep: the row of the next gradient's batch that these inputs will be. What is computed here then serves that
            gradient, if the parameters are still the same. It saves time and changes nothing. No other inputs may be
            given for the same row before that gradient.

        Returns:
          head name -> float32 [N, width], and the state after the step, float32 [N, spec.state_size].
        """


class Engine(Actor):
    """Act on a batch, and compute the gradient of a batch."""

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
          loss: gives the derivative of the loss by the outputs.
          out: float32 [P], memory for the result. TensorFlow computes in memory of its own.
        """
