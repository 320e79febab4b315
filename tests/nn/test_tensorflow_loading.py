"""What happens when something loads TensorFlow, which here is a module of some lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WATCHED = """
import contextlib, os, sys
from relaax.server.command.hardware import load_tensorflow_quietly
from relaax.nn.tensorflow_loading import is_loaded, load_within, tf, when_loaded

@contextlib.contextmanager
def around():
    print("begins")
    yield
    print("ends")

load_tensorflow_quietly()
load_within(around)
when_loaded(lambda: print("then", tf.LOADED))
print(is_loaded())
"""

AFTERWARDS = """
print(is_loaded())
when_loaded(lambda: print("at once"))
load_within(around)
print(sys.modules["tensorflow"].__spec__.loader)
"""


def run(tmp_path: Path, tensorflow: str, code: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tensorflow.py").write_text(f"import os, sys\nos.write(2, b'no GPU here')\n{tensorflow}")
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WATCHED + code], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("use", ["import tensorflow", "tf.LOADED", "from tensorflow import LOADED", "a child"])
def test_whoever_loads_it_what_was_asked_for_is_done(use: str, tmp_path: Path) -> None:
    if use == "a child":
        use = "sys.stdout.flush()\nif os.fork() == 0:\n    import tensorflow\nelse:\n    os.wait()\n    sys.exit()"
    ended = run(tmp_path, "LOADED = 'as it is'\nprint('loading')\n", use + AFTERWARDS)
    *lines, loader = ended.stdout.splitlines()
    assert lines == ["False", "begins", "loading", "ends", "then as it is", "True", "at once"]
    assert "SourceFileLoader" in loader
    assert ended.stderr == ""


def test_what_it_writes_is_shown_where_it_cannot_be_loaded(tmp_path: Path) -> None:
    ended = run(tmp_path, "raise ImportError('libcuda.so')\n", "import tensorflow")
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == ["False", "begins"]
    assert ended.stderr.startswith("no GPU here")
    assert ended.stderr.rstrip().endswith("ImportError: libcuda.so")


def test_its_absence_is_an_ordinary_error(tmp_path: Path) -> None:
    hidden = "import importlib.machinery\nimportlib.machinery.PathFinder.find_spec = lambda *a: None\nimport tensorflow"
    ended = run(tmp_path, "", hidden)
    assert "ModuleNotFoundError: No module named 'tensorflow'" in ended.stderr
