"""The order of parts, the program and the JSON of the page about mixed actions."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from relaax import rlx
from relaax.algorithm_base.acting.actions import paths_of
from relaax.configuration import load_configuration
from relaax.hosting.loader import load_config, open_algorithm
from relaax.rlx.transitions import Sender
from relaax.rlx.wire.codecs import codec_named
from support.pages import DOCS, block, blocks
from support.processes import Processes
from support.rlx_peer import PeerConnection, RlxPeer, serve

PAGE = DOCS / "mixed-actions.md"
LEAVES = [np.array([2]), np.array([[0, 1]], np.int8), np.array([[-0.25, 1.0]], np.float32)]


def robot_space(tmp_path: Path, processes: Processes) -> tuple[rlx.Space, int]:
    """Run the program of the page. Return its action space, and the number of its steps."""

    def script(conn: PeerConnection) -> None:
        conn.policy = lambda message, conn: LEAVES
        serve(conn)

    (tmp_path / "robot.py").write_text(block(PAGE, "robot.py"), encoding="utf-8")
    with RlxPeer(script) as peer:
        running = processes.start(sys.executable, "-W", "error", "robot.py", peer.address, cwd=tmp_path)
        assert running.wait(60) == 0, running.report()
        (conn,) = peer.connections
    assert {float(step.reward[0]) for step in conn.of(rlx.Step)} > {1.0 - 0.025}
    return conn.hello.action_space, len(conn.of(rlx.Step))


def test_program_gets_the_parts_in_the_order_of_the_page(tmp_path: Path, processes: Processes) -> None:
    space, steps = robot_space(tmp_path, processes)
    assert steps == 20
    rows = re.findall(r"^\| `([\w/]+)` \| (\d)[^|]* \| ([^|]+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [path for path, _, _ in rows] == paths_of(space)
    assert [int(index) for _, index, _ in rows] == list(range(3))
    made: dict[str, Any] = {kind.__name__: kind for kind in (rlx.Box, rlx.Discrete, rlx.MultiBinary)}
    assert [eval(text, made) for _, _, text in rows] == list(space.elements())


def test_json_of_the_page_is_that_of_the_protocol() -> None:
    (text,) = [made.text.strip() for made in blocks(PAGE) if made.language == "json"]
    assert codec_named("json").encode(rlx.Actions(LEAVES), Sender.SERVER).decode() == text


def test_entropy_weights_of_the_page_fit_its_space(tmp_path: Path, processes: Processes) -> None:
    (text,) = [made.text for made in blocks(PAGE) if made.language == "yaml"]
    (tmp_path / "robot.yaml").write_text(text)
    config = load_configuration(tmp_path / "robot.yaml", [], {}, load_config).algorithm_config
    space, _ = robot_space(tmp_path, processes)
    assert open_algorithm("da3c", tmp_path).refusal(config, rlx.Box(shape=(2,)), space) is None
