"""The terminal pictures of the pages equal the output of the commands."""

from __future__ import annotations

import re

import pytest

from support.pages import all_pages, links
from support.terminal_pictures import IMAGES, pictures

DRAWN = pictures()


@pytest.mark.parametrize("name", DRAWN)
def test_committed_picture_is_up_to_date(name: str) -> None:
    assert (IMAGES / name).read_text("utf-8") == DRAWN[name], "make pictures"


@pytest.mark.parametrize("name", DRAWN)
def test_picture_loads_no_external_resource(name: str) -> None:
    text = (IMAGES / name).read_text("utf-8")
    assert re.findall(r"https?://[^\"')]*", text) == ["http://www.w3.org/2000/svg"]
    assert "@font-face" not in text


def test_each_picture_is_on_a_page() -> None:
    shown = {link.rpartition("/")[2] for page in all_pages() for link in links(page)}
    assert set(DRAWN) <= shown
