"""Every relative link and anchor of every page of the repository has a target."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.pages import DOCS, ROOT, all_pages, broken_links, links

PAGES = {str(page.relative_to(ROOT)): page for page in all_pages()}


@pytest.mark.parametrize("name", PAGES)
def test_links_of_page_are_valid(name: str) -> None:
    assert broken_links(PAGES[name]) == []


def test_index_links_to_every_page() -> None:
    named = {(DOCS / link).resolve() for link in links(DOCS / "README.md")}
    pages = {page for page in DOCS.glob("*.md") if page.name != "README.md"}
    assert pages <= named, f"docs/README.md does not name {sorted(page.name for page in pages - named)}"


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `heading`, twice\n## A heading, twice\n[1](#a-heading-twice) [2](#a-heading-twice-1) [3](#nowhere)\n"
        '[4](missing.md) ![5](https://example.org/a.png) <img src="gone.svg" alt="">\n`[6](code.md)`\n'
        "```sh\n[7](code.md)\n```\n"
    )
    assert [line.partition(":")[0] for line in broken_links(page)] == ["#nowhere", "missing.md", "gone.svg"]
