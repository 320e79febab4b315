"""What computes a network: one interface, and which engine serves where.

The host's engine (`relaax.nn.host`) computes on the CPU. TensorFlow's (`relaax.nn.tensorflow_engine`) computes images
on a GPU, and is what the host's is tested against. An agent that only acts has plain numpy (`relaax.nn.numpy_actor`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from relaax.nn.devices import CPU, computes_on_gpu
from relaax.nn.specification import NetworkSpec

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


def make_engine(spec: NetworkSpec, input_dtype: Any, batch_shape: tuple[int | None, int | None]) -> Engine:
    """Make the engine for a network on this process's device, for an agent that learns.

    `input_dtype` is uint8 or float32. `batch_shape` is T and N of the batches that gradients are computed from, None
    if they vary.
    """
    if _on_gpu(spec):
        from relaax.nn.tensorflow_engine import TensorFlowEngine

        return TensorFlowEngine(spec, input_dtype)
    from relaax.nn.host.engine import HostEngine

    return HostEngine(spec, input_dtype, batch_shape)


def make_actor(spec: NetworkSpec, input_dtype: Any) -> Actor:
    """Make what acts with a network on this process's device, for an agent that does not learn."""
    if _on_gpu(spec):
        return make_engine(spec, input_dtype, (None, None))
    from relaax.nn.numpy_actor import NumpyActor

    return NumpyActor(spec)


def _on_gpu(spec: NetworkSpec) -> bool:
    """Tell whether TensorFlow computes the network: one without convolutions is too small for a GPU to pay."""
    return bool(spec.convolutions) and computes_on_gpu()


def load_engines(device: str) -> None:
    """Import what engines on `device` (`cpu`, `gpu`, `gpu:I`) need: numba, and TensorFlow for a GPU. Runs nothing."""
    import relaax.nn.host.engine

    if device != CPU:
        import relaax.nn.tensorflow_engine  # noqa: F401
