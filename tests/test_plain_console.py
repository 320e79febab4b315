"""Text from a peer or a file is printed without interpreting markup, and its control characters are escaped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from relaax.plain_console import PlainConsole

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", ["[/x]", "[red]a[/red]", "[link=http://h]a", "a:bomb:", r"\[b]"])
def test_markup_in_cells_headers_titles_and_sentences_is_printed(name: str) -> None:
    console = PlainConsole(width=100)
    table = Table(f"{name} column", title=f"{name} title")
    table.add_row(f"{name} cell")
    with console.capture() as capture:
        console.print(table)
        console.print(f"{name} sentence")
    assert [part for part in ("column", "title", "cell", "sentence") if f"{name} {part}" not in capture.get()] == []


def test_control_characters_are_escaped_except_line_ends() -> None:
    console = PlainConsole(width=100)
    with console.capture() as capture:
        console.print("a\x1b[2Jb\x9bc\nd", Text("styled"))
    assert capture.get() == "a\\x1b[2Jb\\x9bc\nd styled\n"


def test_every_command_uses_plain_console() -> None:
    own = re.compile(r"(?<!Plain)\bConsole\(|TextColumn\((?!.*markup=False)")
    found = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "relaax").rglob("*.py") if own.search(path.read_text())
    }
    assert found - {"relaax/plain_console.py"} == set()
