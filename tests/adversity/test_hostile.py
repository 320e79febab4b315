"""Hostile clients beside honest ones, for a minute. `hostile.py` goes on for as long as one likes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hostile_picture import draw, table, write_csv
from support.hostile_run import Plan, run_hostile
from support.processes import Processes


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("websocket", [False, True], ids=["tcp", "websocket"])
def test_honest_clients_train_on_among_hostile_ones(processes: Processes, tmp_path: Path, websocket: bool) -> None:
    plan = Plan(seconds=55.0, seed=7, window=10.0, share=0.4, websocket=websocket)
    summary = run_hostile(processes, tmp_path, plan)
    write_csv(summary, tmp_path / "hostile.csv")
    draw(summary, tmp_path / "hostile.png")
    assert (tmp_path / "hostile.png").stat().st_size > 0
    assert len((tmp_path / "hostile.csv").read_text().splitlines()) == len(summary["samples"]) + 1
    assert "share that they kept" in table(summary)
