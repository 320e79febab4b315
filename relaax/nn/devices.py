"""Which device a process computes on: `cpu`, `gpu` (the first one) or `gpu:I`.

A process sees its device and no other. So TensorFlow places everything there by itself, variables included, takes no
memory of another role's GPU, and code that computes names no device. What computes on `cpu` need not load TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from relaax.nn.tensorflow_loading import tf, when_loaded

Gpu = TypeVar("Gpu")

CPU = "cpu"
_WAY_OUT = "use cpu, or install the GPU's driver and its libraries (pip install 'tensorflow[and-cuda]' for NVIDIA's)"

_on_gpu = False
"""Whether this process was told to compute on a GPU."""


class NoSuchDevice(Exception):
    """The device that was asked for is not there. The message names it, what there is, and the way out."""


def use_device(device: str) -> None:
    """Have this process compute on `device`; a GPU's memory is taken as it is needed, not all at once.

    To be called before the process runs its first operation. `cpu` does not load TensorFlow; whatever loads it later
    finds no GPU. Listing GPUs starts their driver, which does not survive a fork: not to be called for them if
    processes are yet to be forked. Raises NoSuchDevice.
    """
    global _on_gpu
    if device == CPU:
        _on_gpu = False
        when_loaded(lambda: tf.config.set_visible_devices([], "GPU"))
        return
    gpu = chosen(device, tf.config.list_physical_devices("GPU"))
    tf.config.set_visible_devices([gpu], "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    _on_gpu = True


def computes_on_gpu() -> bool:
    """Return whether this process computes on a GPU: one that nobody told so does not, and need not load TensorFlow."""
    return _on_gpu


def use_one_thread() -> None:
    """Have TensorFlow compute on one thread, whenever it is loaded: the processor has other processes to run."""
    when_loaded(_limit_threads)


def chosen(device: str, gpus: Sequence[Gpu]) -> Gpu:
    """Return the one of `gpus` that a process on `device` sees. Raises NoSuchDevice."""
    index = int(device.partition(":")[2] or 0)
    if index < len(gpus):
        return gpus[index]
    asked = f"{device} was asked for, but TensorFlow finds"
    if not gpus:
        raise NoSuchDevice(f"{asked} no GPU on this machine, only the CPU: {_WAY_OUT}")
    found = ", ".join(f"gpu:{i}" for i in range(len(gpus)))
    raise NoSuchDevice(f"{asked} only {found} on this machine: use one of these, or cpu")


def _limit_threads() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
