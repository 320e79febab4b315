"""Tests of the device check in a child process, after which the parent can still fork safely."""

from __future__ import annotations

import subprocess
import sys

import pytest

from relaax.libraries import LIBRARY_VARIABLES

PROGRAM = """
import os, signal
import tensorflow as tf
from relaax.server.rlx_server.workers import spawners

descriptors = len(os.listdir("/proc/self/fd"))
print(spawners.device_refusal("cpu"))
print(spawners.device_refusal("gpu:99"))
send_device_error = spawners._send_device_error
spawners._send_device_error = lambda device, answer: os.kill(os.getpid(), signal.SIGSEGV)
print(spawners.device_refusal("gpu"))
spawners._send_device_error = lambda device, answer: 1 / 0
print(spawners.device_refusal("gpu"))
spawners._send_device_error = lambda device, answer: send_device_error("cpu", answer)
print(spawners.device_refusal("gpu"))
print(spawners.thread_count(), len(os.listdir("/proc/self/fd")) - descriptors, flush=True)
pid = os.fork()
if pid == 0:
    os._exit(0 if float(tf.constant(1.0) + 1.0) == 2.0 else 1)
print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server", "relaax/server/command", "relaax/nn/tensorflow_loading.py")
def test_device_check_in_a_child_leaves_the_parent_unchanged() -> None:
    environment = LIBRARY_VARIABLES | {"PYTHONPATH": ":".join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=240, check=True
    )
    cpu, missing, crashed, failed, found, parent, forked = answer.stdout.splitlines()
    assert (cpu, found) == ("None", "None")
    assert missing.startswith("gpu:99 was asked for, but TensorFlow finds ")
    assert crashed.startswith("the process that checked for device gpu was ended by SIGSEGV: use cpu")
    assert "failed, as logged above" in failed
    assert "ZeroDivisionError" in answer.stderr
    assert parent == "1 0", "one thread, and as many descriptors as before"
    assert forked == "0"
