"""The glossary: docs/glossary.yaml, and the two pages that are written from it.

cd tests && python -m support.glossary     # `make docs` calls it
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypedDict

import yaml

from support.pages import DOCS

SOURCE, PAGE, INDEX = DOCS / "glossary.yaml", DOCS / "glossary.md", DOCS / "README.md"
BEGIN, END = "<!-- glossary: written by `make docs` -->", "<!-- end of glossary -->"


class Term(TypedDict):
    """An entry of docs/glossary.yaml."""

    term: str
    meaning: str
    before: list[str]


def terms() -> list[Term]:
    """Return the terms in the order of docs/glossary.yaml."""
    return list(yaml.safe_load(SOURCE.read_text("utf-8")))


def page() -> str:
    """Return docs/glossary.md."""
    entries = "".join(f"\n## {entry['term']}\n\n{entry['meaning']}{_before(entry)}\n" for entry in terms())
    return (
        "# Glossary\n\n"
        "<!-- Written by `make docs` from glossary.yaml. -->\n\n"
        "The terms of these pages, of the configuration and of the code. Earlier pages and RELAAX 0.1 used other\n"
        f"words for some of them.\n{entries}"
    )


def index(text: str) -> str:
    """Return docs/README.md with the list of terms between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{INDEX.name}: the lines {BEGIN} and {END} are missing"
    links = ", ".join(f"[{entry['term']}](glossary.md#{_anchor(entry['term'])})" for entry in terms())
    return f"{before}{BEGIN}\n{links}\n{END}{after}"


def write(page_file: Path = PAGE, index_file: Path = INDEX) -> None:
    """Write both pages."""
    page_file.write_text(page(), "utf-8")
    index_file.write_text(index(index_file.read_text("utf-8")), "utf-8")


def _before(entry: Term) -> str:
    return f" *Before: {', '.join(entry['before'])}.*" if entry["before"] else ""


def _anchor(term: str) -> str:
    return re.sub(r"[^\w\- ]", "", term.lower()).replace(" ", "-")


if __name__ == "__main__":
    write()
