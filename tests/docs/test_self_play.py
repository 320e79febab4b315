"""The examples of the page about self-play."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from relaax.configuration import load_configuration
from relaax.lessons.ratings import INITIAL, SWING, OpponentRatings
from support.pages import DOCS, block, blocks
from support.processes import Processes
from support.service import started_service

PAGE = DOCS / "self-play.md"

pytestmark = pytest.mark.checks("docs/self-play.md", "relaax/client", "relaax/lessons", "relaax/server/rlx_server")


def test_nim_of_page_plays_against_older_checkpoints(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "nim.py").write_text(block(PAGE, "nim.py"), encoding="utf-8")
    with started_service(tmp_path, sections={"opponents": {"keep": 3, "every": 50}}, normalize_rewards=None) as service:
        for _ in range(2):
            running = processes.start(sys.executable, "-W", "error", "nim.py", service.address, cwd=tmp_path)
            assert running.wait(120) == 0, running.report()
            status = service.wait_for_no_workers()
        assert status.episodes == 200, "only episodes of the learner count"
        assert status.global_step > 300
        assert status.opponent_win_rate is not None, "the second program played with checkpoints of the first"
        assert status.elo != INITIAL


def test_section_of_page_is_valid(tmp_path: Path) -> None:
    (made,) = [made for made in blocks(PAGE) if made.language == "yaml"]
    path = tmp_path / "self_play.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(made.text) | {"algorithm": {"path": "da3c"}}))
    opponents = load_configuration(path).opponents
    assert (opponents.keep, opponents.every) == (10, 50_000)


def test_formula_of_page_is_that_of_the_ratings() -> None:
    assert f"grows by {SWING:g} (s - e)" in PAGE.read_text()
    assert f"It begins at {INITIAL:g}" in PAGE.read_text()
    ratings = OpponentRatings(10, 100)
    ratings.add_checkpoint("old", 100)
    ratings.record([("old", -1.0)] * 40)
    before, other = ratings.rating, ratings.of("old")
    assert other is not None
    ratings.record([("old", 1.0)])
    expected = 1 / (1 + 10 ** ((other - before) / 400))
    assert ratings.rating == pytest.approx(before + 4 * (0 - expected))
    assert ratings.of("old") == pytest.approx(other - 4 * (0 - expected))
