"""Tables and names at the width of a terminal."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from relaax.cli.fitting import Column, FittingTable, shortened
from relaax.plain_console import PlainConsole


@pytest.mark.parametrize(
    ("text", "width", "start", "end"),
    [
        ("CartPole-v1", 11, "CartPole-v1", "CartPole-v1"),
        ("CartPole-v1", 10, "CartPole-…", "…rtPole-v1"),
        ("a b", 3, "a b", "a b"),
        ("a bc", 3, "a…", "…bc"),
        ("環境の名前", 5, "環境…", "…名前"),
        ("環境の名前", 10, "環境の名前", "環境の名前"),
        ("ab", 1, "…", "…"),
    ],
)
def test_shortened_text_keeps_its_start_or_its_end(text: str, width: int, start: str, end: str) -> None:
    assert shortened(text, width) == start
    assert shortened(text, width, keep_end=True) == end
    assert max(cell_len(start), cell_len(end)) <= width


def lines(width: int) -> list[str]:
    table = FittingTable("", Column("name", name=True), Column("steps so far"), Column("age", spare=1), Column("of"))
    table.add_row("a long name of a thing", "1,234,567", "12,345", "7")
    table.add_row("gone", style="red")
    console = PlainConsole(width=width)
    with console.capture() as capture:
        console.print(table, highlight=False)
    return [line.rstrip() for line in capture.get().splitlines()]


def test_wide_terminal_has_all_columns_on_one_line() -> None:
    header, rule, first, second = (" ".join(re.split(" {2,}", line)) for line in lines(80))
    assert header == "name steps so far age of"
    assert set(rule) == {"─"}
    assert first == "a long name of a thing 1,234,567 12,345 7"
    assert second == "gone"


def test_narrow_terminal_wraps_headers_before_names() -> None:
    assert lines(42) == [
        "                        steps so",
        "name                         far    age of",
        "─" * 42,
        "a long name of a thing 1,234,567 12,345  7",
        "gone",
    ]


def test_narrower_terminal_shortens_names_then_drops_columns() -> None:
    assert lines(30)[3] == "a long na… 1,234,567 12,345  7"
    assert lines(24) == [
        "             steps so",
        "name              far of",
        "─" * 24,
        "a long nam… 1,234,567  7",
        "gone",
        "a wider terminal shows:",
        "age",
    ]
