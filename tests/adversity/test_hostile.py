"""Hostile clients beside honest ones for a minute. `hostile.py` runs for any time."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.hostile_picture import draw, table, write_csv
from support.hostile_run import Plan, run_hostile
from support.processes import Processes

pytestmark = pytest.mark.checks("relaax/server", "relaax/rlx")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("websocket", [False, True], ids=["tcp", "websocket"])
def test_honest_clients_keep_training_beside_hostile_ones(
    processes: Processes, tmp_path: Path, websocket: bool, short: bool
) -> None:
    if short and not websocket:
        pytest.skip("--short has only the WebSocket form, in which every second honest client uses TCP")
    seconds, window, hostile = (31.0, 8.0, 5) if short else (55.0, 10.0, 3)
    plan = Plan(seconds=seconds, seed=7, window=window, hostile=hostile, share=0.4, websocket=websocket)
    summary = run_hostile(processes, tmp_path, plan)
    write_csv(summary, tmp_path / "hostile.csv")
    draw(summary, tmp_path / "hostile.png")
    assert (tmp_path / "hostile.png").stat().st_size > 0
    assert len((tmp_path / "hostile.csv").read_text().splitlines()) == len(summary["samples"]) + 1
    assert "ratio of these two rates" in table(summary)
