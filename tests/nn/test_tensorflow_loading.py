"""Hooks on the loading of TensorFlow, with a small module in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOOKED = """
import contextlib, os, sys
from relaax.server.command.hardware import load_tensorflow_quietly
from relaax.nn.tensorflow_loading import is_loaded, load_within, tf, when_loaded

@contextlib.contextmanager
def context():
    print("enter")
    yield
    print("exit")

load_tensorflow_quietly()
load_within(context)
when_loaded(lambda: print("action:", tf.LOADED))
print(is_loaded())
"""

AFTERWARDS = """
print(is_loaded())
when_loaded(lambda: print("at once"))
load_within(context)
print(sys.modules["tensorflow"].__spec__.loader)
"""


def run(tmp_path: Path, tensorflow: str, code: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tensorflow.py").write_text(f"import os, sys\nos.write(2, b'no GPU here')\n{tensorflow}")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", HOOKED + code], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("use", ["import tensorflow", "tf.LOADED", "from tensorflow import LOADED", "a child"])
def test_any_import_runs_contexts_and_actions(use: str, tmp_path: Path) -> None:
    if use == "a child":
        use = "sys.stdout.flush()\nif os.fork() == 0:\n    import tensorflow\nelse:\n    os.wait()\n    sys.exit()"
    ended = run(tmp_path, "LOADED = 'loaded'\nprint('loading')\n", use + AFTERWARDS)
    *lines, loader = ended.stdout.splitlines()
    assert lines == ["False", "enter", "loading", "exit", "action: loaded", "True", "at once"]
    assert "SourceFileLoader" in loader
    assert ended.stderr == ""


def test_output_of_failed_import_is_shown(tmp_path: Path) -> None:
    ended = run(tmp_path, "raise ImportError('libcuda.so')\n", "import tensorflow")
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == ["False", "enter"]
    assert ended.stderr.startswith("no GPU here")
    assert ended.stderr.rstrip().endswith("ImportError: libcuda.so")


def test_missing_tensorflow_raises_module_not_found_error(tmp_path: Path) -> None:
    hidden = "import importlib.machinery\nimportlib.machinery.PathFinder.find_spec = lambda *a: None\nimport tensorflow"
    ended = run(tmp_path, "", hidden)
    assert "ModuleNotFoundError: No module named 'tensorflow'" in ended.stderr
