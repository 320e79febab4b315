"""Mistakes of beginners: each one gives the message that the study `first-hour` lists."""

from __future__ import annotations

import pytest

from support.mistakes import MISTAKES, message_of
from support.pages import study

ROWS = dict(
    line.strip("| \n").split(" | ")
    for line in study("first-hour").read_text("utf-8").splitlines()
    if line.startswith("| ") and "`" in line
)


def test_study_lists_every_mistake() -> None:
    assert list(ROWS) == list(MISTAKES)
    assert len(ROWS) >= 20


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_gives_message_of_study(mistake: str) -> None:
    assert message_of(mistake) == ROWS[mistake].strip("`")
