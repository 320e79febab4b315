"""The libraries of compiled kernels: their contents, their results, and what happens without them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relaax.machine_code import ANY_ORDER, FLAT, READ, compiled_once, inlined, prebuilt
from relaax.machine_code.build import MODULES, declared, is_current
from relaax.machine_code.declarations import DECLARED, Declaration
from relaax.machine_code.fingerprint import UnsupportedGlobal, fingerprint
from relaax.machine_code.just_in_time import compiled_now
from relaax.machine_code.prebuilt import FOLDER, Library, kernel_of, levels, library, library_path
from support.kernel_arguments import arguments_of
from support.programs import ROOT

KERNELS = {f"{kernel.function.__name__}{kernel.signature}": kernel for kernel in declared()}
UPDATE = next(kernel for kernel in declared() if kernel.function.__name__ == "rms_prop")


@pytest.mark.parametrize("level", levels())
def test_library_of_each_level_is_current(level: str) -> None:
    assert is_current(library_path(level)), "run `make setup`"


def test_every_module_with_kernels_is_in_the_libraries() -> None:
    texts = {path: path.read_text() for folder in ("relaax", "algorithms") for path in (ROOT / folder).rglob("*.py")}
    using = {path for path, text in texts.items() if "import" in text and "compiled_once(" in text}
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in using}
    assert names - {"relaax.machine_code.__init__"} == set(MODULES)


def test_only_the_compilation_imports_numba() -> None:
    texts = {path: path.read_text() for folder in ("relaax", "algorithms") for path in (ROOT / folder).rglob("*.py")}
    importing = {path.name for path, text in texts.items() if "import numba" in text or "from numba" in text}
    assert importing == {"build.py", "just_in_time.py"}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("level", levels())
def test_kernel_computes_the_same_as_with_numba(level: str, name: str, tmp_path: Path) -> None:
    kernel = KERNELS[name]
    module = module_of(level, tmp_path)
    arguments, expected = arguments_of(kernel), arguments_of(kernel)
    result = getattr(module, fingerprint(kernel))(*arguments)
    assert result == compiled_now(kernel)(*expected)
    for array, wanted in zip(arguments, expected, strict=True):
        np.testing.assert_allclose(array, wanted, rtol=2e-5, atol=2e-6)


def module_of(level: str, folder: Path) -> Any:
    """Load the library of a level, from a folder with no other."""
    path = library_path(level, folder)
    path.symlink_to(library_path(level))
    found = library(folder)
    if found.module is None and "processor" in found.reason:
        pytest.skip(found.reason)
    assert found.level == level
    return found.module


def vectors(count: int) -> list[Any]:
    return [np.ones(5, np.float32) for _ in range(count)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((*vectors(4), 1.0, 1.0), "rms_prop: 7 arguments are needed, not 6"),
        (([1.0], *vectors(3), 1.0, 1.0, 1.0), r"rms_prop: writable float32\[:\] is needed, which must be an array"),
        (
            (np.ones(5), *vectors(3), 1.0, 1.0, 1.0),
            r"float32\[:\] is needed, not an array with dtype number 12",
        ),
        ((*vectors(3), np.ones(5, ">f4"), 1.0, 1.0, 1.0), r"float32\[:\] is needed, not an array with dtype number 11"),
        ((*vectors(3), np.ones((5, 1), np.float32), 1.0, 1.0, 1.0), "not an array with dtype number 11, 2 axes"),
        ((np.ones(9, np.float32)[::2], *vectors(3), 1.0, 1.0, 1.0), r"writable float32\[:\] is needed, not an array"),
        ((np.frombuffer(b"1234", np.float32), *vectors(3), 1.0, 1.0, 1.0), r"writable float32\[:\] is needed, not"),
        ((*vectors(4), "1", 1.0, 1.0), "must be real number, not str"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], sentence: str) -> None:
    kernel = kernel_of(UPDATE)
    assert kernel is not None
    with pytest.raises(TypeError, match=sentence):
        kernel(*arguments)


def test_read_only_arrays_are_accepted_where_nothing_is_written() -> None:
    gradient = np.ones(5, np.float32)
    gradient.flags.writeable = False
    kernel = kernel_of(UPDATE)
    assert kernel is not None
    kernel(*vectors(3), gradient, 1.0, 0.5, 0.1)


MODULE = """
import numpy as np
from relaax.machine_code import FLAT, READ, compiled_once, inlined
_FACTOR = np.float32(2)
def _product(x, y):
    return x * y
_product = inlined(_product)
@compiled_once(FLAT, READ)
def scale(
    values, factors
):
    for i in range(len(values)):
        values[i] = _product(values[i], factors[i]) * _FACTOR

OTHER = 3
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("OTHER = 3", "OTHER = 4", True),
        ("float32(2)", "float32(3)", False),
        ("x * y", "x + y", False),
        ("range(len(values))", "range(1, len(values))", False),
        ("compiled_once(FLAT, READ)", "compiled_once(FLAT, FLAT)", False),
        ("inlined(_product)", 'inlined(_product, frozenset({"nsz"}))', False),
    ],
)
def test_changed_kernel_has_another_fingerprint(old: str, new: str, same: bool, tmp_path: Path) -> None:
    first, second = (fingerprint(kernel_in(tmp_path / name, text)) for name, text in texts(old, new))
    assert (first == second) is same


def texts(old: str, new: str) -> list[tuple[str, str]]:
    assert old in MODULE
    return [("first.py", MODULE), ("second.py", MODULE.replace(old, new))]


def kernel_in(path: Path, text: str) -> Declaration:
    path.write_text(text)
    names: dict[str, Any] = {"__name__": "a_module_of_kernels"}
    exec(compile(text, path, "exec"), names)
    return DECLARED.pop()


def test_kernel_with_another_global_has_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedGlobal, match="kernel scale uses _FACTOR: make it a number or `inlined`"):
        fingerprint(kernel_in(tmp_path / "module.py", MODULE.replace("np.float32(2)", "[2]")))


def test_own_kernel_is_compiled_by_numba() -> None:
    values = np.ones(3, np.float32)
    own()(values, values)
    assert values.tolist() == [2, 2, 2]


def _twice(value: Any) -> Any:
    return value + value


_twice = inlined(_twice, ANY_ORDER)


@compiled_once(FLAT, READ, fastmath=ANY_ORDER)
def own(values: Any, others: Any) -> None:
    for i in range(len(values)):
        values[i] = _twice(others[i])


def test_damaged_library_is_not_used(tmp_path: Path) -> None:
    level = next(iter(levels()))
    library_path(level, tmp_path).write_bytes(b"not a library")
    found = library(tmp_path)
    assert found.module is None
    assert found.reason.startswith("it cannot be loaded: ")
    assert library(tmp_path / "nothing").reason == "this installation has none"


def test_processor_without_the_features_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    level = next(iter(levels()))
    library_path(level, tmp_path).symlink_to(library_path(level, FOLDER))
    monkeypatch.setattr(prebuilt, "levels", lambda: {level: "sse9"})
    monkeypatch.setattr(prebuilt, "_features", lambda: {"sse2"})
    assert library(tmp_path).reason == f"the processor lacks the features of {level}"


def test_missing_library_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(prebuilt, "library", lambda: Library(None, reason="it is away"))
    prebuilt._loaded.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            assert [kernel_of(UPDATE), kernel_of(UPDATE)] == [None, None]
    finally:
        prebuilt._loaded.cache_clear()
    assert caplog.messages == [
        "kernels are compiled by numba, because the library of compiled kernels is not used: it is away"
    ]
