"""The examples of the page about demonstrations."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas
import pytest

from relaax.demonstrations.reading import RecordedEpisodes
from support.pages import DOCS, block
from support.processes import Processes, project_command

PAGE = DOCS / "demonstrations.md"

pytestmark = pytest.mark.checks("docs/demonstrations.md", "relaax/demonstrations", "relaax/cli/demonstrations")


def test_expert_of_page_is_recorded_and_read_by_pandas(tmp_path: Path, processes: Processes) -> None:
    text = block(PAGE, "expert.py").replace("episodes=20", "episodes=3")  # a busy machine takes 100 s for 20
    (tmp_path / "expert.py").write_text(text, encoding="utf-8")
    program = [sys.executable, "-W", "error", "expert.py", "ADDRESS"]
    running = processes.start(project_command("relaax"), "record", "demos", "--", *program, cwd=tmp_path)
    assert running.wait(120) == 0, running.report()
    assert running.lines == ["demos: 3 episodes, 1,500 steps, mean return 500"]
    recorded = RecordedEpisodes(tmp_path / "demos")
    assert all(episode.chosen.all() for episode in recorded)
    steps = pandas.read_parquet(tmp_path / "demos")
    assert steps.groupby("episode")["reward"].sum().tolist() == [500.0] * 3
    table = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    described = {name for line in table for name in line.split("|")[1].replace("`", "").replace(",", " ").split()}
    assert set(steps.columns) <= described
