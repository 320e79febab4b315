"""docs/glossary.md and the index of terms are generated from docs/glossary.yaml."""

from __future__ import annotations

import re
from pathlib import Path

from support import glossary


def test_committed_glossary_is_up_to_date(tmp_path: Path) -> None:
    page, index = tmp_path / "glossary.md", tmp_path / "README.md"
    index.write_text(glossary.INDEX.read_text("utf-8"), "utf-8")
    glossary.write(page, index)
    assert page.read_text("utf-8") == glossary.PAGE.read_text("utf-8"), "run `make docs`"
    assert index.read_text("utf-8") == glossary.INDEX.read_text("utf-8"), "run `make docs`"


def test_each_term_is_defined_once() -> None:
    names = [entry["term"] for entry in glossary.terms()]
    assert len(names) == len(set(names))
    assert re.findall(r"^## (.+)$", glossary.PAGE.read_text("utf-8"), re.MULTILINE) == names


def test_former_terms_are_not_terms() -> None:
    names = {entry["term"] for entry in glossary.terms()}
    assert [word for entry in glossary.terms() for word in entry["before"] if word in names] == []
