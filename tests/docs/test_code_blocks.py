"""Code that readers copy from pages is complete, and its files have names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.pages import ROOT, all_pages, blocks, files

PAGES = {str(page.relative_to(ROOT)): page for page in all_pages() if "tests" not in page.relative_to(ROOT).parts}
COMPLETE_PAGES = [name for name in PAGES if name != "README.md"]  # its examples begin with the reader's own environment


@pytest.mark.parametrize("name", PAGES)
def test_file_names_are_above_blocks_not_in_fences(name: str) -> None:
    """Code hosts and terminals hide the words after a fence's language."""
    for made in blocks(PAGES[name]):
        assert made.language == "sh" or "." not in made.name, made.name
        assert not made.file or not made.name, made.name


def test_later_parts_of_file_are_marked_continued() -> None:
    for page in PAGES.values():
        for name in files(page):
            _, *others = re.findall(rf"^\*\*`{re.escape(name)}`\*\*(.*)$", page.read_text("utf-8"), re.MULTILINE)
            assert all(other == ", continued" for other in others), (page.name, name)


def undefined_names(texts: list[tuple[str, str]], folder: Path) -> dict[str, set[str]]:
    """Return the undefined names and the unused imports of Python texts, by page.

    `texts` has pairs of page and text. Names that a fragment's comment calls the reader's own are omitted.
    """
    for index, (_, text) in enumerate(texts):
        (folder / f"{index}.py").write_text(text, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "F821,F401"]
    report = subprocess.run([*ruff, "--output-format", "json", str(folder)], capture_output=True, text=True, timeout=60)
    found: dict[str, set[str]] = {}
    for one in json.loads(report.stdout):
        page, text = texts[int(Path(one["filename"]).stem)]
        name = re.findall(r"`([\w.]+)`", one["message"])[0]
        fragment = re.search("^# A fragment.*", text, re.MULTILINE)
        if fragment is None or f"`{name}`" not in fragment[0]:
            found.setdefault(page, set()).add(name)
    return found


@pytest.fixture(scope="module")
def undefined(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    texts = []
    for name, page in PAGES.items():
        texts += [(name, made.text) for made in blocks(page) if made.language == "python" and not made.file]
        texts += [(name, text) for file, text in files(page).items() if file.endswith(".py")]
    return undefined_names(texts, tmp_path_factory.mktemp("blocks"))


@pytest.mark.parametrize("name", COMPLETE_PAGES)
def test_copied_python_imports_and_defines_all_it_uses(name: str, undefined: dict[str, set[str]]) -> None:
    assert undefined.get(name, set()) == set()


def test_undefined_and_unused_names_are_found(tmp_path: Path) -> None:
    fragment = "# A fragment: `game` is yours.\nprint(game, state)\n"
    texts = [("a", "import os\nprint(x)\n"), ("b", "x = 1\nprint(x)\n"), ("c", fragment)]
    assert undefined_names(texts, tmp_path) == {"a": {"os", "x"}, "c": {"state"}}


@pytest.mark.parametrize("name", PAGES)
def test_yaml_and_json_blocks_can_be_parsed(name: str) -> None:
    for made in blocks(PAGES[name]):
        if made.language == "yaml":
            assert yaml.safe_load(made.text) is not None or made.text.startswith("#"), made.text
        if made.language == "json":
            for line in made.text.splitlines() if made.text.startswith("{") else [made.text]:
                json.loads(line)


@pytest.mark.parametrize("name", PAGES)
def test_copied_commands_have_no_prompts_or_ellipses(name: str) -> None:
    for made in blocks(PAGES[name]):
        if made.language in ("sh", "python"):
            assert not re.findall(r"^(?:\$|%|>|>>>|\.\.\.)(?: |$)", made.text, re.MULTILINE), made.text
        if made.language == "sh":
            assert not re.findall(r"(?:^|\s)(?:\.\.\.|…)(?:\s|$)", made.text), made.text
