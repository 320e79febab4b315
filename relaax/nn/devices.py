"""The device of a process: `cpu`, `gpu` (the first one) or `gpu:I`.

A process sees only its own device. So TensorFlow places everything there, variables included, and does not allocate
memory on another role's GPU. Code that computes does not name a device. A process on `cpu` does not need TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from relaax.nn.tensorflow_loading import tf, when_loaded

Gpu = TypeVar("Gpu")

CPU = "cpu"
_REMEDY = "use cpu, or install the GPU's driver and its libraries (pip install 'tensorflow[and-cuda]' for NVIDIA's)"

_on_gpu = False
"""Whether `use_device` was called with a GPU."""


class NoSuchDevice(Exception):
    """The requested device does not exist. The message names it, the devices found, and a remedy."""


def use_device(device: str) -> None:
    """Make this process compute on `device`. A GPU's memory is allocated on demand.

    Call this before the first operation of the process. `cpu` does not load TensorFlow, and hides all GPUs if
    TensorFlow is loaded later. For a GPU, call this only after the last fork: it starts the driver, which does not
    survive a fork. Raises NoSuchDevice.
    """
    global _on_gpu
    if device == CPU:
        _on_gpu = False
        when_loaded(lambda: tf.config.set_visible_devices([], "GPU"))
        return
    gpu = select_gpu(device, tf.config.list_physical_devices("GPU"))
    tf.config.set_visible_devices([gpu], "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    _on_gpu = True


def computes_on_gpu() -> bool:
    """Return whether this process computes on a GPU. The default is the CPU. Does not load TensorFlow."""
    return _on_gpu


def use_one_thread() -> None:
    """Make TensorFlow compute on one thread, once it is loaded, because other processes need the cores."""
    when_loaded(_limit_threads)


def select_gpu(device: str, gpus: Sequence[Gpu]) -> Gpu:
    """Return the element of `gpus` that `device` names. Raises NoSuchDevice."""
    index = int(device.partition(":")[2] or 0)
    if index < len(gpus):
        return gpus[index]
    request = f"{device} was asked for, but TensorFlow finds"
    if not gpus:
        raise NoSuchDevice(f"{request} no GPU on this machine, only the CPU: {_REMEDY}")
    found = ", ".join(f"gpu:{i}" for i in range(len(gpus)))
    raise NoSuchDevice(f"{request} only {found} on this machine: use one of these, or cpu")


def _limit_threads() -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
