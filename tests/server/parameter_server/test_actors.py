from __future__ import annotations

import json
import random

import pytest

from relaax.server.parameter_server.service import actors
from relaax.server.parameter_server.service.actors import ActorTable, Indices


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_resumed_session_gets_its_actor_indices() -> None:
    table = ActorTable()
    assert tuple(table.connect("a", 2)) == (0, 1)
    assert tuple(table.connect("b", 1)) == (2,)
    assert tuple(table.connect("a", 3)) == (0, 1, 3)
    assert tuple(table.connect("a", 1)) == (0,)
    restored = ActorTable()
    restored.restore(json.loads(json.dumps(table.as_json())))
    assert tuple(restored.connect("b", 1)) == (2,)
    assert tuple(restored.connect("c", 1)) == (4,)
    assert tuple(restored.connect("a", 3)) == (0, 1, 3)


def test_full_table_drops_the_longest_disconnected_session() -> None:
    table = ActorTable(capacity=2)
    for session in ("a", "b"):
        table.connect(session, 1)
        table.disconnect(session)
    table.connect("a", 1)
    table.disconnect("a")
    table.connect("c", 1)  # drops b
    assert tuple(table.connect("d", 1)) == (1,)


def test_indices_of_disconnected_sessions_are_bounded() -> None:
    table = ActorTable()
    each = 65_536
    for number in range(2 * actors.MAX_KEPT // each):
        table.connect(str(number), each)
        table.disconnect(str(number))
    kept = table.as_json()
    assert sum(count for ranges in kept.values() for _, count in ranges) == actors.MAX_KEPT
    assert max(first for ranges in kept.values() for first, _ in ranges) <= actors.MAX_KEPT
    assert len(json.dumps(kept)) < 1000


def test_table_is_small_as_json_and_is_restored() -> None:
    table = ActorTable()
    for number in range(100):
        table.connect(f"s{number}", 65_536)
    assert len(json.dumps(table.as_json())) < 5000
    written = list(table.as_json().items())[:10]
    restored = ActorTable()
    restored.restore({**dict(written), "odd": [[9_000_003, 1], [9_000_001, 2]]})
    assert tuple(restored.connect("odd", 3)) == (9_000_003, 9_000_001, 9_000_002)
    assert restored.connect("s7", 65_536)[0] == 7 * 65_536
    assert tuple(restored.connect("new", 1)) == (655_360,)


@pytest.mark.parametrize(
    "indices",
    [[-1], [2**32], ["1"], [1.5], [True], [[0, 0]], [[0, -1]], [[0, 1, 2]], [[0, 2**70]], [None], [], 7, [[1, 1], 1]],
)
def test_invalid_ranges_are_dropped(indices: object, caplog: pytest.LogCaptureFixture) -> None:
    table = ActorTable()
    table.restore({"wrong": indices, "right": [[5, 1]]})  # type: ignore[dict-item]
    assert table.as_json() == {"right": [[5, 1]]}
    assert "dropped 1 sessions of the checkpoint" in caplog.text


def test_session_with_an_index_of_another_one_is_dropped() -> None:
    table = ActorTable()
    table.restore({"a": [[0, 4]], "b": [[10, 2], [3, 3]]})
    assert table.as_json() == {"a": [[0, 4]]}
    assert tuple(table.connect("c", 2)) == (4, 5)


def test_growing_session_has_few_ranges() -> None:
    table = ActorTable()
    for environments in range(1, 1000):
        table.connect("a", environments)
        table.connect("b", environments)
    assert all(len(ranges) <= actors.MAX_RANGES for ranges in table.as_json().values())


def test_sessions_never_share_indices_and_all_are_freed() -> None:
    rng, clock = random.Random(3), Clock()
    table = ActorTable(capacity=12, keep=50.0, clock=clock)
    connected: dict[str, Indices] = {}
    for _ in range(5000):
        clock.now += rng.random()
        session = f"s{rng.randrange(20)}"
        if session in connected:
            del connected[session]
            rng.choice((table.disconnect, table.remove))(session)
        elif len(connected) < 10:
            connected[session] = table.connect(session, rng.choice((1, 2, 3, 40)))
        ranges = [each for owned in table.as_json().values() for each in owned]
        used = [index for first, count in ranges for index in range(first, first + count)]
        assert len(used) == len(set(used))
        assert {index for indices in connected.values() for index in indices} <= set(used)
        assert len(table.as_json()) <= 12
    for session in list(connected):
        table.disconnect(session)
    clock.now += 51.0
    assert table.as_json() and not _expired(table).as_json()
    assert tuple(table.connect("first", 3)) == (0, 1, 2)


def test_indices_behave_as_a_tuple() -> None:
    indices = Indices([range(3, 5), range(9, 10)])
    assert (len(indices), indices[0], indices[2], indices[-1], list(indices)) == (3, 3, 9, 9, [3, 4, 9])
    assert (indices[1:], 9 in indices, 5 in indices) == ((4, 9), True, False)


def _expired(table: ActorTable) -> ActorTable:
    table.expire()
    return table
