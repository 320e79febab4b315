from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relaax.nn.devices import NoSuchDevice, select_gpu, use_device

pytestmark = pytest.mark.checks("relaax/nn", "relaax/optim")

SECOND_DEVICE = Path(__file__).resolve().parents[1] / "support" / "second_device.py"


@pytest.mark.parametrize(
    ("device", "gpus", "seen"),
    [
        ("gpu", ["a", "b"], "a"),
        ("gpu:0", ["a", "b"], "a"),
        ("gpu:1", ["a", "b"], "b"),
    ],
)
def test_device_name_selects_the_gpu(device: str, gpus: list[str], seen: str) -> None:
    assert select_gpu(device, gpus) == seen


def test_cpu_process_hides_gpus_when_tensorflow_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "class config:\n"
        "    @staticmethod\n"
        "    def set_visible_devices(devices, kind):\n"
        "        print('visible', devices, kind)\n"
    )
    code = """
import sys
from relaax.nn.devices import computes_on_gpu, use_device
use_device("cpu")
print(computes_on_gpu(), "tensorflow" in sys.modules)
import tensorflow
print(computes_on_gpu())
"""
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == ["False False", "visible [] GPU", "False"]


@pytest.mark.parametrize(
    ("device", "gpus", "texts"),
    [
        ("gpu", [], ["gpu was asked for", "no GPU on this machine", "use cpu", "driver"]),
        ("gpu:1", [], ["gpu:1 was asked for", "no GPU on this machine"]),
        ("gpu:2", ["a", "b"], ["gpu:2 was asked for", "gpu:0, gpu:1", "or cpu"]),
    ],
)
def test_error_names_missing_device_and_those_found(device: str, gpus: list[str], texts: list[str]) -> None:
    with pytest.raises(NoSuchDevice) as refused:
        select_gpu(device, gpus)
    for text in texts:
        assert text in str(refused.value)


def test_gpu_that_tensorflow_does_not_find_is_refused() -> None:
    with pytest.raises(NoSuchDevice, match="gpu:99 was asked for"):
        use_device("gpu:99")


@pytest.mark.slow
def test_vectors_and_optimizers_work_on_second_device() -> None:
    """The test runs in a separate process, because devices cannot change after TensorFlow has run."""
    answer = subprocess.run([sys.executable, str(SECOND_DEVICE)], capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == ["RMSProp", "Adam", "done"]
