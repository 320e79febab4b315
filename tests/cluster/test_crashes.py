"""Machines that die or are disconnected during training: real Ray, on machines that are network namespaces."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cluster_crashes import CrashScene
from support.namespaces import Namespaces, can_make_namespaces
from support.processes import Processes
from support.ray_nodes import RayNodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.checks(
        "relaax/cluster", "relaax/cli/cluster", "relaax/supervision", "tests/support/cluster_crashes.py"
    ),
    pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces need root, and the command ip (iproute2)"),
]
MACHINES = 4
EVERY_SECONDS = 60.0
AGAIN_SECONDS = 60.0


@pytest.fixture
def scene(processes: Processes, tmp_path: Path) -> Iterator[CrashScene]:
    with Namespaces(MACHINES, 1.0, 1.0) as network, RayNodes(processes, network) as nodes:
        yield CrashScene(network, nodes, tmp_path, print)


def test_every_update_is_accounted_for_after_machine_deaths(scene: CrashScene, short: bool) -> None:
    """The first lost machine has a shard. Training continues on other machines; no process or file remains."""
    with scene.training:
        archive = scene.archive()
        scene.wait_for_recovery(time.monotonic())
        count, every = (1, 0.0) if short else (10, EVERY_SECONDS)
        scene.crash_in_turn(count, every)
        scene.disconnect(scene.machine_with("parameter-server"), 12.0 if short else 30.0)
        seen = scene.end(archive)
    assert len(seen.recoveries) == count + 1
    assert max(seconds for _, seconds in seen.recoveries) < AGAIN_SECONDS * (3 if short else 1), seen.recoveries
    assert seen.account.kept


def test_long_partition_duplicates_no_update(scene: CrashScene, short: bool) -> None:
    if short:
        pytest.skip("the long form: five minutes")
    with scene.training:
        archive = scene.archive()
        scene.wait_for_recovery(time.monotonic())
        scene.disconnect(scene.machine_with("parameter-server"), 300.0)
        scene.end(archive)
