"""Tests that pages name as evidence exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.pages import DOCS, ROOT

_NAMED = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def missing(page: Path) -> list[str]:
    """Return the tests that a page names and that do not exist."""
    wrong = []
    for file, name in _NAMED.findall(page.read_text("utf-8")):
        path = ROOT / file
        if not path.is_file() or (name and f"def {name}(" not in path.read_text("utf-8")):
            wrong.append(f"{file}::{name}" if name else file)
    return wrong


@pytest.mark.parametrize("name", ["promises.md", "security.md"])
def test_tests_named_by_page_exist(name: str) -> None:
    assert _NAMED.search((DOCS / name).read_text("utf-8")), f"{name} names no test"
    assert missing(DOCS / name) == []


def test_missing_tests_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`tests/docs/test_named_tests.py::test_missing_tests_are_found` `tests/docs/test_gone.py` "
        "`tests/docs/test_links.py::test_gone` tests/docs/test_in_prose.py\n"
    )
    assert missing(page) == ["tests/docs/test_gone.py", "tests/docs/test_links.py::test_gone"]
