"""Pages of docs/: their links and headings, and the blocks of code in them.

The name of a file stands above its block: **`single.py`**. A name for tests follows the language: ```sh train. Blocks
with the same name form one text. If tests do not run a block, the reason follows ```sh needs.
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
    """Return the joined text of a page's blocks with this name."""
    return "".join(parts(page, name))


def parts(page: Path, name: str) -> list[str]:
    """Return the texts of a page's blocks with this name."""
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
    """Return the fenced blocks of a page, from top to bottom."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text("utf-8"))]


def files(page: Path) -> dict[str, str]:
    """Return the files that a page contains, by name."""
    return {made.file: block(page, made.file) for made in blocks(page) if made.file}


def all_pages() -> list[Path]:
    """Return every Markdown file of the project. This does not need git."""
    found = [*ROOT.glob("*.md")]
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links and pictures, except those in code."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text("utf-8")))
    return [*_LINK.findall(text), *_SOURCE.findall(text)]


def anchors(page: Path) -> set[str]:
    """Return the fragments that a link may name after `#`: the anchors that code hosts generate from headings."""
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
    """Return the broken links of a page, each with the reason."""
    wrong = []
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
        if not target.exists():
            wrong.append(f"{link}: {parts.path} does not exist")
        elif parts.fragment and target.suffix == ".md" and unquote(parts.fragment) not in anchors(target):
            wrong.append(f"{link}: {target.name} has no heading {parts.fragment}")
    return wrong
