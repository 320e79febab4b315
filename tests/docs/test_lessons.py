"""The examples of the page about lessons."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from relaax import rlx
from relaax.configuration import load_configuration
from support.pages import DOCS, block, blocks
from support.processes import Processes
from support.rlx_peer import PeerConnection, RlxPeer, Script

PAGE = DOCS / "lessons.md"

pytestmark = pytest.mark.checks("docs/lessons.md", "relaax/client", "relaax/lessons", "relaax/configuration")


def heights(*numbers: float) -> Script:
    """Return a server that always climbs. The answer to each init has the height of the next episode."""

    def script(conn: PeerConnection) -> None:
        conn.policy = lambda message, conn: [np.ones(conn.hello.environments, np.int64)]
        conn.welcome(parameters={"height": [numbers[0]]})
        for number in numbers[1:]:
            conn.answer({0: [number]})
            while not isinstance(conn.answer(), rlx.Reset):
                pass
        while True:
            conn.answer()

    return script


def test_hill_of_page_has_the_heights_of_the_server(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "hill.py").write_text(block(PAGE, "hill.py"), encoding="utf-8")
    with RlxPeer(heights(*range(1, 21))) as peer:
        running = processes.start(sys.executable, "-W", "error", "hill.py", peer.address, cwd=tmp_path)
        assert running.wait(60) == 0, running.report()
        (conn,) = peer.connections
    assert [end.reward.tolist() for end in conn.of(rlx.Reset)] == [[10.0 * (top <= 9)] for top in range(1, 21)]


def test_sections_of_page_make_lessons(tmp_path: Path) -> None:
    sections = [yaml.safe_load(made.text) for made in blocks(PAGE) if made.language == "yaml"]
    path = tmp_path / "lessons.yaml"
    path.write_text(yaml.safe_dump(sections[0] | {"algorithm": {"path": "da3c"}}))
    curriculum = load_configuration(path).curriculum()
    assert curriculum is not None
    assert str(curriculum.edition) == "gravity 9.8, length 0.3 to 0.8, rooms 1 | 2 | 4"
    path.write_text(
        yaml.safe_dump(sections[1] | {"environment-parameters": {"distance": 4}, "algorithm": {"path": "da3c"}})
    )
    curriculum = load_configuration(path).curriculum()
    assert curriculum is not None
    assert (str(curriculum.edition), str(curriculum.final_edition)) == ("distance 1", "distance 4")


def test_line_of_page_draws_the_numbers() -> None:
    (made,) = [
        made for made in blocks(PAGE) if made.language == "python" and made.text.startswith("from relaax.lessons")
    ]
    found: dict[str, Any] = {}
    exec(made.text.replace("\ndraw(", "\nnumbers = draw("), found)
    gravity, length = found["numbers"]
    assert gravity == 9.8
    assert 0.3 <= length <= 0.8
