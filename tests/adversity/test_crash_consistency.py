"""If the process is killed or the power fails during a save, the checkpoint is complete or absent.

The process is killed at every file-system operation of a save. The effects of a power failure are computed from the
same operations. See `support.crash_recorder` (operations, kills), `support.crash_disk` (power failures),
`support.crash_scene` (checks after an interruption) and `support.crash_stores` (mistakes that must be found).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.crash_child import CheckpointSaver, checkpoint_saver
from support.crash_recorder import AFTER, MIDDLE
from support.crash_scene import Scene, kinds
from support.crash_servers import MOMENTS, CrashedServers
from support.crash_stores import FLAWS
from support.processes import Processes

_POINTS = 2  # every second change is tried
_RESTARTS = 4  # after every fourth of them, the process is restarted
_FOUND_AFTER_RESTART = ("DirectoriesOfOthersUnsynced", "Untidy")


@pytest.fixture(scope="module")
def saver() -> Iterator[CheckpointSaver]:
    with checkpoint_saver() as process:
        yield process


@pytest.fixture(autouse=True)
def disable_logging(caplog: pytest.LogCaptureFixture) -> None:
    """Disable logging: checkpoints damaged on purpose cause hundreds of warnings."""
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(params=["later", "first"])
def scene(request: pytest.FixtureRequest, saver: CheckpointSaver, tmp_path: Path) -> Scene:
    """A scene in which a checkpoint is saved to a directory with others, or to a new directory."""
    return Scene(saver, tmp_path, first=request.param == "first")


def test_every_operation_is_recorded(saver: CheckpointSaver, tmp_path: Path) -> None:
    scene = Scene(saver, tmp_path)
    operations = scene.operations
    assert scene.replayed, "replaying the recorded operations gives the same files"
    found = kinds(operations)
    minimum = {"mkdir": 1, "open": 10, "write": 10, "fsync": 10, "rename": 5, "unlink": 3, "rmdir": 1, "close": 5}
    assert {name for name, count in minimum.items() if found.get(name, 0) < count} == set()
    for index, operation in enumerate(operations):
        if operation.kind == "rename":
            folder = str(Path(operation.target).parent)
            assert any(one.kind == "fsync" and one.path == operation.path for one in operations[:index])
            assert any(one.kind == "fsync" and one.path == folder for one in operations[index:])
    named = {operation.target.rpartition("/")[2] for operation in operations}
    assert {"lease.json", "shard-0.safetensors", "shard-1.safetensors", "manifest.json"} <= named


def test_power_failure_at_any_operation_leaves_no_damage(scene: Scene) -> None:
    assert list(scene.lose_power()) == []
    changing = [one for one in scene.operations if one.kind not in ("open", "close")]
    assert scene.states > 1.5 * len(changing), "several outcomes were tried for most operations"


def test_kill_after_a_file_change_leaves_no_damage(saver: CheckpointSaver, tmp_path: Path) -> None:
    scene = Scene(saver, tmp_path)
    points = scene.changes()
    assert len(points) > scene.count / 3
    for index, point in enumerate(points[::_POINTS]):
        assert list(scene.kill(*point, restart=index % _RESTARTS == 0)) == []


@pytest.mark.slow
@pytest.mark.checks("relaax/checkpoint", "tests/support/crash_scene.py", "tests/support/crash_recorder.py")
@pytest.mark.timeout(900)
def test_kill_at_any_moment_and_restart_leave_no_damage(scene: Scene, short: bool) -> None:
    points = list(scene.points())
    assert len(points) > 2 * scene.count
    for point in points[:: 5 if short else 1]:
        assert list(scene.kill(*point)) == []


@pytest.mark.parametrize("flaw", [flaw for flaw in FLAWS if flaw not in _FOUND_AFTER_RESTART])
def test_planted_mistake_is_found_by_a_power_failure(saver: CheckpointSaver, tmp_path: Path, flaw: str) -> None:
    scene = Scene(saver, tmp_path, flaw, first=flaw == "DirectoriesUnsynced")
    since = 0 if flaw == "OldGoFirst" else scene.published
    assert next(scene.lose_power(since), None) is not None


@pytest.mark.parametrize("flaw", ["ManifestFirst", "OldGoFirst", "InPlace"])
def test_planted_mistake_is_found_by_a_kill(saver: CheckpointSaver, tmp_path: Path, flaw: str) -> None:
    scene = Scene(saver, tmp_path, flaw)
    published = scene.operations[scene.published].number
    nearest = sorted(range(1, scene.count + 1), key=lambda number: abs(number - published))
    found = (problem for number in nearest for problem in scene.kill(number, MIDDLE, restart=False))
    assert next(found, None) is not None


@pytest.mark.parametrize("flaw", _FOUND_AFTER_RESTART)
def test_planted_mistake_is_found_after_a_restart(saver: CheckpointSaver, tmp_path: Path, flaw: str) -> None:
    scene = Scene(saver, tmp_path, flaw, first=True)
    found = (problem for number in range(1, scene.count) for problem in scene.kill(number, AFTER))
    assert next(found, None) is not None


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [1, 2])
def test_servers_are_killed_while_they_save_a_checkpoint(
    processes: Processes, tmp_path: Path, count: int, short: bool
) -> None:
    servers = CrashedServers(processes, tmp_path, count)
    moments = [moment for moment in MOMENTS if count > 1 or moment != "the last part is saved"]
    times = 4 if short else 20
    for index in range(times):
        servers.kill_once(moments[index % len(moments)], victim=index % count)
    servers.verify()
    assert len(servers.reached) >= times / 2, "most of the moments occurred in time"
