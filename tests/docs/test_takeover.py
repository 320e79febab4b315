"""The examples of the page about takeover."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from relaax import rlx
from relaax.cli.run.plan import make_plan
from support.pages import DOCS, ROOT, block
from support.processes import Processes
from support.rlx_peer import PeerConnection, RlxPeer, serve_with

PAGE = DOCS / "takeover.md"

pytestmark = pytest.mark.checks("docs/takeover.md", "relaax/client", "environments/OpenAI_Gym")


def accelerate(message: Any, conn: PeerConnection) -> list[np.ndarray]:
    return [np.ones(conn.hello.environments, np.int64)]


def test_driver_of_page_brakes_before_the_wall(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "driver.py").write_text(block(PAGE, "driver.py"), encoding="utf-8")
    with RlxPeer(serve_with(accelerate)) as peer:
        running = processes.start(sys.executable, "-W", "error", "driver.py", peer.address, cwd=tmp_path)
        assert running.wait(60) == 0, running.report()
        (conn,) = peer.connections
    ends = conn.of(rlx.Reset)
    assert len(ends) == 20
    assert all(end.chosen is not None and end.chosen.all() and end.action[0].tolist() == [0] for end in ends)
    assert all(step.chosen is None for step in conn.of(rlx.Step))


def test_configuration_names_the_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "`arguments: [--taken-action, taken_action]`" in PAGE.read_text(encoding="utf-8")
    run = {"environment": "OpenAI_Gym", "name": "CartPole-v1", "arguments": ["--taken-action", "taken_action"]}
    Path("cart.yaml").write_text(yaml.safe_dump({"relaax-run": run, "algorithm": {"path": "da3c"}}))
    words = make_plan("cart.yaml", []).client_command("random", 0)
    assert words[words.index("--taken-action") + 1] == "taken_action"


def balances_without_a_place(message: Any, conn: PeerConnection) -> list[np.ndarray]:
    _, _, angle, turn = message.observation[0].T
    return [(angle + turn > 0).astype(np.int64)]


def test_rescue_of_page_reports_its_actions(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "rescue.py").write_text(block(PAGE, "rescue.py"), encoding="utf-8")
    with RlxPeer(serve_with(balances_without_a_place)) as peer:
        program = [sys.executable, str(ROOT / "environments" / "OpenAI_Gym" / "main.py"), peer.address, "CartPole-v1"]
        options = ["--wrapper", "rescue:Rescue", "--taken-action", "taken_action", "--steps", "3000", "--seed", "1"]
        running = processes.start(*program, *options, cwd=tmp_path)
        assert running.wait(60) == 0, running.report()
        (conn,) = peer.connections
    places: list[float] = []
    for before, step in itertools.pairwise(conn.of(rlx.Init, rlx.Step)):
        if isinstance(step, rlx.Step) and step.chosen is not None and step.chosen.any():
            places.append(abs(float(before.observation[0][0, 0])))
    assert len(places) > 20
    assert min(places) > 1
