"""Prose of the tree: plain technical English, short test names, and pages within their budgets of words."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from support.pages import ROOT, all_pages
from support.prose import SUFFIXES, Place, places

FOLDERS = (".ci", "algorithms", "config", "docker", "docs", "environments", "protocol", "relaax", "tests")
CEILING = 3.0
"""Places per 1,000 lines that a package may have."""
LONGEST_TEST_NAME = 60
WORDS_OF_PAGES = 71_200
WORDS_OF_README = 900
# The patterns themselves, the words that the glossary replaces, and data that is not prose.
EXCEPT = ("tests/support/prose.py", "tests/test_prose.py", "docs/glossary.md", "docs/glossary.yaml")


@cache
def files() -> dict[str, list[Path]]:
    """Return the files with prose, by package."""
    found: dict[str, list[Path]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            is_generated = (
                "_pb2" in name or "__pycache__" in name or re.search(r"/(?:build|target|node_modules)/", name)
            )
            if path.suffix in SUFFIXES and path.is_file() and not is_generated and name not in EXCEPT:
                found.setdefault(package_of(name), []).append(path)
    return found


def package_of(name: str) -> str:
    """Return the package of a file, such as relaax/replay, relaax/server/ports or docs."""
    parts = name.split("/")
    depth = {"relaax/server": 3, "protocol/clients": 3}.get("/".join(parts[:2]))
    if depth is None:
        depth = 2 if parts[0] in ("relaax", "algorithms", "tests", "environments") else 1
    return "/".join(parts[: min(depth, len(parts) - 1)])


def words(path: Path) -> int:
    """Return the number of words of a page. The bars of tables are not words."""
    return len(re.findall(r"\S*\w\S*", path.read_text("utf-8")))


@pytest.mark.parametrize("package", sorted(files()))
def test_prose_is_plain_english(package: str) -> None:
    found: list[Place] = [place for path in files()[package] for place in places(path)]
    lines = sum(path.read_text("utf-8").count("\n") for path in files()[package])
    assert len(found) <= CEILING * lines / 1000, "\n".join(map(str, found))


def test_test_names_are_short() -> None:
    names = [
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)
    ]
    assert sorted(name for name in names if len(name) > LONGEST_TEST_NAME) == []


def test_pages_keep_within_their_words() -> None:
    pages = {page: words(page) for page in all_pages() if "archive" not in page.parts}
    assert pages[ROOT / "README.md"] <= WORDS_OF_README
    longest = Counter({page.relative_to(ROOT).as_posix(): count for page, count in pages.items()}).most_common(10)
    assert sum(pages.values()) <= WORDS_OF_PAGES, longest


def test_each_kind_of_place_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "def serve(worker):\n"
        '    """Of a worker, the rows that whoever waits hears of."""\n'
        "    # What comes is taken anew.\n"
        '    raise ValueError("0 items are none: 1 is the least")\n'
    )
    assert {place.kind for place in places(module)} == {
        "a first line that is a fragment",
        "a person as the subject",
        "a program that speaks",
        "a clause in the place of a noun",
        "a word of an old dialect",
    }
    assert sorted({place.line for place in places(module)}) == [2, 3, 4]


def test_plain_prose_has_no_places(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Replay\n\nIf the table is full, the oldest item is evicted.\n\n```sh\necho what is this\n```\n")
    assert places(page) == []
