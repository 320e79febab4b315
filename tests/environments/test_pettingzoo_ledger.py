"""Every action of an agent of PettingZoo, with its rewards and its end, reaches the algorithm exactly once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from support.offline import start_offline_server
from support.processes import Processes
from support.programs import ROOT, completed, program
from support.rlx_peer import RlxPeer

SUPPORT = Path(__file__).resolve().parents[1] / "support"
RED, BLUE = [0, 1], [2, 3]  # the agents of `scripted_zoo`


def entries(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of all files of a folder that are about actions, by their number."""
    lines = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    return sorted((line for line in lines if "number" in line), key=lambda line: line["number"])


def start_journal(folder: Path, processes: Processes) -> tuple[str, Path]:
    """Start a server whose agents write journals. Return its address, and the folder of the journals."""
    journals = folder / "journals"
    journals.mkdir(parents=True)
    algorithm = {"path": str(SUPPORT / "turn_algorithm.py"), "folder": str(journals), "max_global_step": 10**9}
    return start_offline_server(processes, folder, algorithm=algorithm)[1], journals


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ScriptedTurns", []),
        ("ScriptedTurns", ["--kwarg", "deads_first=false"]),
        ("ScriptedTurns", ["--opponents", "random", "--play", "red"]),
        ("ScriptedTogether", []),
        ("ScriptedTogether", ["--opponents", "random", "--play", "red"]),
    ],
)
def test_each_outcome_of_a_scripted_game_arrives_once(
    name: str, options: list[str], seed: int, processes: Processes, tmp_path: Path
) -> None:
    address, journals = start_journal(tmp_path / "server", processes)
    (tmp_path / "ledger").mkdir()
    done = program(
        *("PettingZoo", address, f"scripted_zoo:{name}", "3", "--path", str(SUPPORT), "--seed", str(seed)),
        *("--steps", "1500", "--kwarg", f"ledger={tmp_path / 'ledger'}", *options),
    )
    assert done.returncode == 0, done.stderr
    agents = RED if "red" in options else RED + BLUE
    expected = [entry for entry in entries(tmp_path / "ledger") if entry["chosen_on"][0] in agents]
    assert len(expected) >= 1500
    assert entries(journals) == expected


@pytest.mark.parametrize("name", ["ScriptedTurns", "ScriptedTogether"])
def test_two_kinds_of_agents_use_their_own_services(name: str, processes: Processes, tmp_path: Path) -> None:
    (red, red_journals), (blue, blue_journals) = (start_journal(tmp_path / one, processes) for one in ("red", "blue"))
    (tmp_path / "ledger").mkdir()
    command = [sys.executable, "-W", "error", str(ROOT / "environments/PettingZoo/teams.py"), f"scripted_zoo:{name}"]
    options = ["--copies", "3", "--path", str(SUPPORT), "--seed", "1", "--steps", "1500"]
    done = completed(
        [*command, f"red={red}", f"blue={blue}", *options, "--kwarg", f"ledger={tmp_path / 'ledger'}"], {**os.environ}
    )
    assert done.returncode == 0, done.stderr
    expected = entries(tmp_path / "ledger")
    assert entries(red_journals) == [entry for entry in expected if entry["chosen_on"][0] in RED]
    assert entries(blue_journals) == [entry for entry in expected if entry["chosen_on"][0] in BLUE]
    assert done.stdout.startswith("red: ")
    assert len(entries(red_journals)) > 300 < len(entries(blue_journals))


def test_two_teams_play_knights_and_archers() -> None:
    with RlxPeer() as archers, RlxPeer() as knights:
        line = ["knights_archers_zombies", f"archer={archers.address}", f"knight={knights.address}", "--copies", "2"]
        done = completed(
            [sys.executable, str(ROOT / "environments/PettingZoo/teams.py"), *line, "--steps", "400"], {**os.environ}
        )
        hellos = [peer.connections[0].hello for peer in (archers, knights)]
    assert done.returncode == 0, done.stderr
    assert [(hello.environment, hello.environments, hello.out_of_step) for hello in hellos] == [
        ("butterfly/knights_archers_zombies_v11 archer", 4, True),
        ("butterfly/knights_archers_zombies_v11 knight", 4, True),
    ]
