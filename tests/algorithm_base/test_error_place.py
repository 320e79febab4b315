from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.algorithm_base import load_algorithm
from relaax.bundled import bundled_folder
from relaax.hosting.errors import describe_error, is_deliberate, place_of

ALGORITHM = """
from relaax.algorithm_base import AgentBase, ConfigBase, ParameterServerBase
import numpy as np
from .helper import half
class Config(ConfigBase): pass
class ParameterServer(ParameterServerBase): pass
class Agent(AgentBase):
    def wrong_shape(self): return np.zeros(3) + np.zeros(4)
    def in_a_library(self): return np.take(np.zeros(3), 7)
    def in_a_helper(self): return half(None)
    def refused(self):
        raise ValueError("spaces that it cannot handle")
"""


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ALGORITHM)
    (tmp_path / "helper.py").write_text("def half(number):\n    return number / 2\n")
    return load_algorithm("mine", tmp_path).Agent


def caught(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("the function did not raise an error")


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("wrong_shape", "mine.py, line 8: ValueError: operands could not be broadcast together with shapes (3,) (4,)"),
        ("in_a_library", "mine.py, line 9: IndexError: index 7 is out of bounds for axis 0 with size 3"),
        ("in_a_helper", "helper.py, line 2: TypeError: unsupported operand type(s) for /: 'NoneType' and 'int'"),
    ],
)
def test_error_is_located_in_the_code_of_the_algorithm(kind: Any, tmp_path: Path, method: str, sentence: str) -> None:
    assert describe_error(caught(lambda: getattr(kind, method)(None)), tmp_path / "mine.py").rstrip() == sentence


def test_only_errors_of_raise_statements_are_deliberate(kind: Any) -> None:
    assert is_deliberate(caught(lambda: kind.refused(None)))
    assert not is_deliberate(caught(lambda: kind.wrong_shape(None)))


def test_error_outside_the_algorithm_is_located_at_its_file(kind: Any, tmp_path: Path) -> None:
    assert place_of(caught(lambda: np.zeros(3) + np.zeros(4)), tmp_path / "mine.py") == "mine.py"


def test_libraries_in_the_folder_are_not_algorithm_code(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "lib.py"
    library.parent.mkdir()
    library.write_text("def fail():\n    1 / 0\n")
    sys.path.insert(0, str(library.parent))
    try:
        from lib import fail
    finally:
        sys.path.remove(str(library.parent))
    assert place_of(caught(fail), tmp_path / "mine.py") == str(tmp_path / "mine.py")


def test_error_of_a_bundled_algorithm_names_its_line() -> None:
    source = bundled_folder("algorithms") / "da3c"
    algorithm = load_algorithm("da3c", source)
    error = caught(lambda: algorithm.ParameterServer(None, None, None).initial_parameters(1))
    assert "da3c" in place_of(error, source)
    assert ", line " in place_of(error, source)
