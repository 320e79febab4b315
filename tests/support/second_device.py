"""A program that tests the vectors and optimizers of a parameter server on a second device.

TensorFlow splits the processor into two devices that it treats as separate memories. The second one replaces a GPU.
The program prints each optimizer that passed, and ends at the first failed assertion.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from relaax.nn.devices import use_device
from relaax.optim.optimizers import Adam, FlatVariable, Optimizer, OptimizerSpec, RMSProp, Slots
from relaax.optim.vector import FlatVector

SIZE = 1000
INITIAL = np.arange(SIZE, dtype=np.float32)
GRADIENTS = np.random.default_rng(0).standard_normal((6, SIZE)).astype(np.float32)


def made(spec: OptimizerSpec, initial: FlatVector, device: str) -> tuple[FlatVariable, Optimizer[FlatVariable]]:
    """Make a vector and its optimizer on a device. As in a server, later operations do not name the device."""
    with tf.device(device):
        parameters, optimizer = FlatVariable(initial), spec.create(SIZE)
    assert parameters.device.endswith(f"/device:{device}")
    return parameters, optimizer


def trained(spec: OptimizerSpec, device: str) -> tuple[FlatVector, Slots]:
    """Apply three updates, restart from the snapshots, and apply three more."""
    parameters, optimizer = made(spec, INITIAL, device)
    before, slots_before = parameters.snapshot(), optimizer.slots()
    for gradient in GRADIENTS[:3]:
        optimizer.apply(parameters, gradient, 0.1)
    halfway, slots = parameters.snapshot(), optimizer.slots()
    kept = halfway.copy()
    other, its_optimizer = made(spec, INITIAL, device)
    other.assign(halfway)
    its_optimizer.restore(slots)
    for gradient in GRADIENTS[3:]:
        its_optimizer.apply(other, gradient, 0.1)
        optimizer.apply(parameters, gradient, 0.1)
    assert other.snapshot().tobytes() == parameters.snapshot().tobytes()
    for unchanging, expected in ((before, INITIAL), (halfway, kept), (slots_before["mean_square"], np.zeros(SIZE))):
        assert type(unchanging) is np.ndarray
        assert not unchanging.flags.writeable
        np.testing.assert_array_equal(unchanging, expected)
    return parameters.snapshot(), optimizer.slots()


def main() -> None:
    """Check that the results of both optimizers are equal on both devices, byte by byte."""
    use_device("cpu")
    processor = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(processor, [tf.config.LogicalDeviceConfiguration()] * 2)
    assert {device.device_type for device in tf.config.list_logical_devices()} == {"CPU"}, "GPUs are hidden"
    for spec in (RMSProp(), Adam()):
        here, slots_here = trained(spec, "CPU:0")
        there, slots_there = trained(spec, "CPU:1")
        assert here.tobytes() == there.tobytes()
        assert {k: v.tobytes() for k, v in slots_here.items()} == {k: v.tobytes() for k, v in slots_there.items()}
        print(type(spec).__name__)
    print("done")


if __name__ == "__main__":
    main()
