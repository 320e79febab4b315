"""A training on four machines by one command: shards on two of them, RLX servers on all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.namespaces import Namespaces, can_make_namespaces
from support.processes import Processes
from support.ray_nodes import RayNodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.checks("relaax/cluster", "relaax/cli/cluster", "relaax/supervision", "tests/support/ray_nodes.py"),
    pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces need root, and the command ip (iproute2)"),
]
MACHINES = 4


@pytest.fixture
def nodes(processes: Processes) -> Iterator[RayNodes]:
    with Namespaces(MACHINES, 1.0, 1.0) as network, RayNodes(processes, network) as made:
        for index in range(MACHINES):
            made.start(index, 4)
        yield made


def machines(folder: Path, role: str) -> set[str]:
    """Return the hosts on which processes of a role have listened, according to their logs."""
    logs = [path.read_text("utf-8") for path in (folder / "logs").glob(f"{role}*.log")]
    return {host for log in logs for host in re.findall(r" listening on ([\d.]+):", log)}


def test_cartpole_is_solved(nodes: RayNodes, tmp_path: Path) -> None:
    ended = nodes.relaax(
        *("run", "da3c_gym_cartpole", "--on", "ray", "--run-dir", str(tmp_path / "run"), "--seed", "1"),
        *("--set", "parameter-server.shards=2", "--clients", "4", "--target-return", "475"),
        timeout=1200.0,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(machines(tmp_path / "run", "parameter-server")) == 2
    assert len(machines(tmp_path / "run", "rlx-server")) == MACHINES


def test_learners_connect_to_replay_memory(nodes: RayNodes, tmp_path: Path, short: bool) -> None:
    target = "100" if short else "475"  # the mean return of an evaluation
    ended = nodes.relaax(
        *("run", "apex_gym_cartpole", "--on", "ray", "--run-dir", str(tmp_path / "run"), "--seed", "1"),
        *("--set", "replay-server.shards=2", "--target-evaluation", target),
        timeout=2400.0,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(machines(tmp_path / "run", "replay-server")) == 2
    assert json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["lost_steps"] == 0
