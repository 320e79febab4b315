"""Which device a process computes on: `cpu`, `gpu` (the first one) or `gpu:I`.

A process sees its device and no other. So TensorFlow places everything there by itself, variables included, takes no
memory of another role's GPU, and code that computes names no device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

Gpu = TypeVar("Gpu")

CPU = "cpu"
_WAY_OUT = "use cpu, or install the GPU's driver and its libraries (pip install 'tensorflow[and-cuda]' for NVIDIA's)"


class NoSuchDevice(Exception):
    """The device that was asked for is not there. The message names it, what there is, and the way out."""


def use_device(device: str) -> None:
    """Have this process compute on `device`; a GPU's memory is taken as it is needed, not all at once.

    To be called before the process runs its first operation. Listing GPUs starts their driver, which does not survive a
    fork: not to be called where processes are yet to be forked. Raises NoSuchDevice.
    """
    gpus = chosen(device, tf.config.list_physical_devices("GPU"))
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def computes_on_gpu() -> bool:
    """Whether this process computes on a GPU. As for `use_device`: not where processes are yet to be forked."""
    return bool(tf.config.get_visible_devices("GPU"))


def chosen(device: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Those of `gpus` that a process on `device` may see: one, or none for `cpu`. Raises NoSuchDevice."""
    if device == CPU:
        return []
    index = int(device.partition(":")[2] or 0)
    if index < len(gpus):
        return [gpus[index]]
    if not gpus:
        raise NoSuchDevice(f"{device} was asked for, but TensorFlow finds no GPU here, only the CPU: {_WAY_OUT}")
    there = ", ".join(f"gpu:{i}" for i in range(len(gpus)))
    raise NoSuchDevice(f"{device} was asked for, but TensorFlow finds only {there} here: use one of these, or cpu")
