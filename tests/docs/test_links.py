"""Every relative link and anchor of every page of the repository leads somewhere."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from support.pages import DOCS, ROOT, all_pages, anchors, links

PAGES = {str(page.relative_to(ROOT)): page for page in all_pages()}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere, each with the reason."""
    wrong = []
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
        if not target.exists():
            wrong.append(f"{link}: there is no {parts.path}")
        elif parts.fragment and target.suffix == ".md" and unquote(parts.fragment) not in anchors(target):
            wrong.append(f"{link}: {target.name} has no heading {parts.fragment}")
    return wrong


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    assert broken(PAGES[name]) == []


def test_the_index_names_every_page() -> None:
    named = {(DOCS / link).resolve() for link in links(DOCS / "README.md")}
    pages = {page for page in DOCS.glob("*.md") if page.name != "README.md"}
    assert pages <= named, f"docs/README.md does not name {sorted(page.name for page in pages - named)}"


def test_what_is_broken_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `heading`, twice\n## A heading, twice\n[1](#a-heading-twice) [2](#a-heading-twice-1) [3](#nowhere)\n"
        '[4](missing.md) ![5](https://example.org/a.png) <img src="gone.svg" alt="">\n`[6](code.md)`\n'
        "```sh\n[7](code.md)\n```\n"
    )
    assert [line.partition(":")[0] for line in broken(page)] == ["#nowhere", "missing.md", "gone.svg"]
