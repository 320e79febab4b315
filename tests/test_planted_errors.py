"""Every error of `planted_errors.py` can still be planted, and the tests that ought to notice are there."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_errors import ERRORS, SOAK_ERRORS

from support.planting import Planted

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("error", ERRORS + SOAK_ERRORS, ids=lambda error: error.name)
def test_it_can_be_planted(error: Planted) -> None:
    texts: dict[str, str] = {}
    for edit in error.edits:
        before = texts.get(edit.file) or (ROOT / edit.file).read_text(encoding="utf-8")
        texts[edit.file] = edit.applied(before)
        compile(texts[edit.file], edit.file, "exec")
    assert bool(error.tests) is (error in ERRORS), "a soak is no test"
    assert [test for test in error.tests if not (ROOT / test).is_file()] == []


def test_names_are_unique() -> None:
    assert len({error.name for error in ERRORS + SOAK_ERRORS}) == len(ERRORS + SOAK_ERRORS)
