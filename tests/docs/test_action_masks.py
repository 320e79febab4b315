"""The examples of the page about action masks."""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from relaax import rlx
from relaax.cli.app import app
from relaax.cli.run.plan import make_plan
from support.pages import DOCS, block, blocks
from support.processes import Processes
from support.rlx_peer import PeerConnection, RlxPeer, serve_with

PAGE = DOCS / "action-masks.md"

pytestmark = pytest.mark.checks("docs/action-masks.md", "relaax/client", "environments/OpenAI_Gym")


def last_valid(message: Any, conn: PeerConnection) -> list[np.ndarray]:
    mask = message.observation[0]
    return [4 - mask[:, ::-1].argmax(axis=1)]


def test_program_of_page_sends_masks(tmp_path: Path, processes: Processes) -> None:
    (tmp_path / "cards.py").write_text(block(PAGE, "cards.py"), encoding="utf-8")
    with RlxPeer(serve_with(last_valid)) as peer:
        running = processes.start(sys.executable, "-W", "error", "cards.py", peer.address, cwd=tmp_path)
        assert running.wait(60) == 0, running.report()
        (conn,) = peer.connections
    assert len(conn.of(rlx.Reset)) == 20
    assert conn.of(rlx.Step)[0].observation[0].tolist() == [[1, 1, 1, 1, 0]]


def test_leaf_of_page_is_a_mask_of_five_actions() -> None:
    (made,) = [made for made in blocks(PAGE) if made.language == "json"]
    leaf = json.loads(made.text)
    assert np.frombuffer(base64.b64decode(leaf["data"]), np.int8).reshape(leaf["shape"]).tolist() == [[1, 0, 1, 0, 0]]
    assert leaf["dtype"] == "DTYPE_INT8"


def test_check_of_page_finds_masks_of_taxi() -> None:
    (line,) = block(PAGE, "check").splitlines()
    done = CliRunner().invoke(app, line.split()[1:])
    assert done.exit_code == 0, done.output
    assert "action_mask: MultiBinary([6])" in done.output


def test_configuration_passes_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "`arguments: [--action-mask, info]`" in PAGE.read_text(encoding="utf-8")
    run = {"environment": "OpenAI_Gym", "name": "Taxi-v4", "arguments": ["--action-mask", "info"]}
    Path("taxi.yaml").write_text(yaml.safe_dump({"relaax-run": run, "algorithm": {"path": "da3c"}}))
    words = make_plan("taxi.yaml", []).client_command("random", 0)
    assert words[words.index("--action-mask") + 1] == "info"
