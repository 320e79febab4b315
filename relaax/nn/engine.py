"""Which engine computes a network where.

The host's engine (`relaax.nn.host`) computes on the CPU. TensorFlow's (`relaax.nn.tensorflow_engine`) computes images
on a GPU, and is what the host's is tested against. An agent that only acts has plain numpy (`relaax.nn.numpy_actor`).
"""

from __future__ import annotations

from typing import Any

from relaax.nn.devices import CPU, computes_on_gpu
from relaax.nn.interfaces import Actor, Engine, Loss, Outputs
from relaax.nn.specification import NetworkSpec

__all__ = ["Actor", "Engine", "Loss", "Outputs", "load_engines", "make_actor", "make_engine"]


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
