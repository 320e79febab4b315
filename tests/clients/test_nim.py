"""The game of two in the Go client: environments out of step and action masks, trained through real ports."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.client_languages import LANGUAGES, require
from support.processes import Processes
from support.service import started_service

pytestmark = pytest.mark.checks(
    "protocol/clients/go", "algorithms/da3c", "relaax/algorithm_base", "relaax/server/rlx_server", "relaax/rlx"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_players_in_turns_learn_to_play_nim(tmp_path: Path, processes: Processes) -> None:
    go = LANGUAGES["go"]
    require(go)
    program = tmp_path / "nim"
    subprocess.run(["go", "build", "-o", program, "./nim"], cwd=go.folder, check=True, timeout=300)
    keys = {"initial_learning_rate": 3e-3, "normalize_rewards": None, "network": {"dense": [64, 64]}}
    with started_service(tmp_path, path="da3c", max_global_step=60_000, **keys) as service:
        game = processes.start(program, service.address, "--games", "16", "--seed", "3")
        assert game.wait(600) == 0, game.report()
    result = re.fullmatch(r"(\d+) games, (\d\.\d+) of the moves were best", game.lines[0])
    assert result, game.report()
    assert game.lines[1] == "training has finished"
    assert float(result[2]) > 0.8, "random play makes a third of the best moves"
