"""Pages of docs/: their links and headings, and the blocks of code in them.

A file's name stands above its block, where readers see it: **`single.py`**. Other names are for tests, and follow
the language: ```sh train. Blocks of one name make one text. The reason why no test runs a block follows ```sh needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FOLDERS = ("algorithms", "config", "docker", "docs", "environments", "protocol", "relaax", "tests")

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"(?:^\*\*`([^`\n]+)`\*\*(?:, continued)?\n\n)?^```(\w*) *(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_SOURCE = re.compile(r"<(?:img|a)\b[^>]*?\b(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} +(.*?) *#* *$", re.MULTILINE)


def study(name: str) -> Path:
    """Return the newest page of a study in `docs/results/archive`."""
    return max((DOCS / "results" / "archive").glob(f"????-??-??-{name}.md"))


def block(page: Path, name: str) -> str:
    """The blocks of a page that have this name, one below the other."""
    return "".join(parts(page, name))


def parts(page: Path, name: str) -> list[str]:
    """The texts of a page's blocks that have this name."""
    found = [made.text for made in blocks(page) if name in (made.file, made.name)]
    assert found, f"{page.name} has no block named {name}"
    return found


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: the file's name above it, its language, the words after that, and its lines."""

    file: str
    language: str
    name: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, from top to bottom."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text("utf-8"))]


def files(page: Path) -> dict[str, str]:
    """The files that a page shows, by their names."""
    return {made.file: block(page, made.file) for made in blocks(page) if made.file}


def all_pages() -> list[Path]:
    """Every Markdown file of the project, also where there is no git."""
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def links(page: Path) -> list[str]:
    """Where a page's links and pictures lead, code left out."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text("utf-8")))
    return [*_LINK.findall(text), *_SOURCE.findall(text)]


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: the headings, as code hosts turn them into names."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    names: set[str] = set()
    for heading in _HEADING.findall(text):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        number, unique = 0, name
        while unique in names:
            number += 1
            unique = f"{name}-{number}"
        names.add(unique)
    return names


def broken_links(page: Path) -> list[str]:
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
