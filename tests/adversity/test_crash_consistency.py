"""A checkpoint that is being saved when the process is killed or the power fails is there whole, or not at all.

The process is killed at every file-system operation of a save; what is lost with the power is told from the same
operations. The means are in `support.crash_recorder` (operations, kills), `support.crash_disk` (power),
`support.crash_scene` (what must hold afterwards) and `support.crash_stores` (mistakes that must be found).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.crash_child import Nursery, nursery
from support.crash_recorder import AFTER, MIDDLE
from support.crash_scene import Scene, kinds
from support.crash_servers import MOMENTS, CrashedServers
from support.crash_stores import FLAWS
from support.processes import Processes

_POINTS, _LIVES = 2, 4  # every so many changes are a point, and of these every so many have a life that follows
_FOUND_IN_ANOTHER_LIFE = ("DirectoriesOfOthersUnsynced", "Untidy")


@pytest.fixture(scope="module")
def mother() -> Iterator[Nursery]:
    with nursery() as process:
        yield process


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """What is damaged on purpose is complained about hundreds of times."""
    caplog.set_level(logging.CRITICAL)


@pytest.fixture(params=["after others", "the first one"])
def scene(request: pytest.FixtureRequest, mother: Nursery, tmp_path: Path) -> Scene:
    """A checkpoint that is saved to a directory with others, or to one that is not there yet."""
    return Scene(mother, tmp_path, made=request.param == "the first one")


def test_every_operation_is_seen(mother: Nursery, tmp_path: Path) -> None:
    scene = Scene(mother, tmp_path)
    operations = scene.operations
    assert scene.replayed, "what was written down, done again, leads to the same files"
    found = kinds(operations)
    least = {"mkdir": 1, "open": 10, "write": 10, "fsync": 10, "rename": 5, "unlink": 3, "rmdir": 1, "close": 5}
    assert {name for name, count in least.items() if found.get(name, 0) < count} == set()
    for index, operation in enumerate(operations):
        if operation.kind == "rename":
            folder = str(Path(operation.target).parent)
            assert any(one.kind == "fsync" and one.path == operation.path for one in operations[:index])
            assert any(one.kind == "fsync" and one.path == folder for one in operations[index:])
    named = {operation.target.rpartition("/")[2] for operation in operations}
    assert {"lease.json", "shard-0.safetensors", "shard-1.safetensors", "manifest.json"} <= named


def test_no_power_at_any_operation(scene: Scene) -> None:
    assert list(scene.lose_power()) == []
    changing = [one for one in scene.operations if one.kind not in ("open", "close")]
    assert scene.states > 1.5 * len(changing), "of most operations several outcomes were tried"


def test_a_death_at_operations_that_change_something(mother: Nursery, tmp_path: Path) -> None:
    scene = Scene(mother, tmp_path)
    points = scene.changes()
    assert len(points) > scene.count / 3
    for index, point in enumerate(points[::_POINTS]):
        assert list(scene.kill(*point, next_life=index % _LIVES == 0)) == []


@pytest.mark.slow
@pytest.mark.checks("relaax/checkpoint", "tests/support/crash_scene.py", "tests/support/crash_recorder.py")
@pytest.mark.timeout(900)
def test_a_death_at_every_moment_of_each_operation_and_a_life_after_it(scene: Scene, short: bool) -> None:
    points = list(scene.points())
    assert len(points) > 2 * scene.count
    for point in points[:: 5 if short else 1]:
        assert list(scene.kill(*point)) == []


@pytest.mark.parametrize("flaw", [flaw for flaw in FLAWS if flaw not in _FOUND_IN_ANOTHER_LIFE])
def test_a_planted_mistake_is_found_when_the_power_fails(mother: Nursery, tmp_path: Path, flaw: str) -> None:
    scene = Scene(mother, tmp_path, flaw, made=flaw == "DirectoriesUnsynced")
    since = 0 if flaw == "OldGoFirst" else scene.published
    assert next(scene.lose_power(since), None) is not None


@pytest.mark.parametrize("flaw", ["ManifestFirst", "OldGoFirst", "InPlace"])
def test_a_planted_mistake_is_found_when_the_process_is_killed(mother: Nursery, tmp_path: Path, flaw: str) -> None:
    scene = Scene(mother, tmp_path, flaw)
    published = scene.operations[scene.published].number
    nearest = sorted(range(1, scene.count + 1), key=lambda number: abs(number - published))
    found = (problem for number in nearest for problem in scene.kill(number, MIDDLE, next_life=False))
    assert next(found, None) is not None


@pytest.mark.parametrize("flaw", _FOUND_IN_ANOTHER_LIFE)
def test_a_planted_mistake_is_found_in_the_life_after_a_death(mother: Nursery, tmp_path: Path, flaw: str) -> None:
    scene = Scene(mother, tmp_path, flaw, made=True)
    found = (problem for number in range(1, scene.count) for problem in scene.kill(number, AFTER))
    assert next(found, None) is not None


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [1, 2])
def test_servers_are_killed_as_they_write_a_checkpoint(
    processes: Processes, tmp_path: Path, count: int, short: bool
) -> None:
    servers = CrashedServers(processes, tmp_path, count)
    moments = [moment for moment in MOMENTS if count > 1 or moment != "the last part is there"]
    times = 4 if short else 20
    for index in range(times):
        servers.kill_once(moments[index % len(moments)], victim=index % count)
    servers.verify()
    assert len(servers.met) >= times / 2, "most of the moments came in time"
