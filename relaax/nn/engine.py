"""Choice of the engine that computes a network.

The host's engine (`relaax.nn.host`) computes on the CPU. TensorFlow's engine (`relaax.nn.tensorflow_engine`) computes
networks with convolutions on a GPU, and is the reference in tests of the host's engine. An agent that only acts uses
plain numpy (`relaax.nn.numpy_actor`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relaax.nn.devices import CPU, computes_on_gpu
from relaax.nn.interfaces import Actor, Engine, Loss, Outputs
from relaax.nn.specification import NetworkSpec

__all__ = ["Actor", "Engine", "Loss", "Outputs", "load_engines", "make_actor", "make_engine", "share_actors"]

MakeActor = Callable[[NetworkSpec, Any, int], Actor]
"""Makes an actor from a network, the dtype of its inputs, and `first` of `make_actor`."""

_make_shared_actor: MakeActor | None = None


def make_engine(spec: NetworkSpec, input_dtype: Any, batch_shape: tuple[int | None, int | None]) -> Engine:
    """Make the engine for a network on this process's device, for an agent that learns.

    `input_dtype` is uint8 or float32. `batch_shape` is (T, N) of the batches for gradients; None for a size that
    varies.
    """
    if _on_gpu(spec):
        from relaax.nn.tensorflow_engine import TensorFlowEngine

        return TensorFlowEngine(spec, input_dtype)
    from relaax.nn.host.engine import HostEngine

    return HostEngine(spec, input_dtype, batch_shape)


def make_actor(spec: NetworkSpec, input_dtype: Any, *, compiled: bool = False, first: int = 0) -> Actor:
    """Make the actor for a network, for an agent that computes no gradients with it.

    It computes on this process's device, or in another process (see `share_actors`). `compiled`: on a CPU, use the
    host's engine, which is faster than plain numpy and takes memory for numba. `first`: the index of the network's
    first parameter in the vector of the parameter server.
    """
    if _make_shared_actor is not None:
        return _make_shared_actor(spec, input_dtype, first)
    if compiled or _on_gpu(spec):
        return make_engine(spec, input_dtype, (1, None))
    from relaax.nn.numpy_actor import NumpyActor

    return NumpyActor(spec)


def share_actors(make: MakeActor | None) -> None:
    """Let `make` make the actors of this process from now on. None: they compute on its device again."""
    global _make_shared_actor
    _make_shared_actor = make


def _on_gpu(spec: NetworkSpec) -> bool:
    """Return whether TensorFlow computes the network. Without convolutions it is too small to be faster on a GPU."""
    return bool(spec.convolutions) and computes_on_gpu()


def load_engines(device: str) -> None:
    """Import what engines on `device` (`cpu`, `gpu`, `gpu:I`) need, and TensorFlow for a GPU."""
    import relaax.nn.host.engine

    if device != CPU:
        import relaax.nn.tensorflow_engine  # noqa: F401
