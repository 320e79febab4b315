"""The number of RLX servers that the autoscaler requests, given their reports. Tests pass the time and do not wait."""

from __future__ import annotations

import pytest

from relaax.cluster.scaling import RETRY_SECONDS, Occupancy, Scaling
from relaax.configuration.sections import ClusterSection

PLACES = 32


def section(**keys: object) -> ClusterSection:
    return ClusterSection.model_validate({"scaling": "refusals", "max_rlx_servers": 8, "idle_seconds": 10.0, **keys})


def full(refused: int = 0) -> Occupancy:
    return Occupancy(PLACES, 0, refused)


def serving(workers: int) -> Occupancy:
    return Occupancy(workers, PLACES - workers, 0)


def after(scaling: Scaling, seconds: float, servers: list[Occupancy | None], begin: float = 0.0) -> int:
    """Return the wanted number of servers once it changes, asked once a second for at most `seconds`."""
    wanted = len(servers)
    for second in range(int(seconds) + 1):
        wanted = scaling.wanted(begin + second, servers)
        if wanted != len(servers):
            break
    return wanted


def test_full_server_without_refusals_is_enough() -> None:
    assert after(Scaling(section()), 100.0, [full()]) == 1


def test_refusal_adds_a_server() -> None:
    scaling = Scaling(section())
    assert scaling.wanted(0.0, [full(refused=5)]) == 1  # the first report does not tell when clients were refused
    assert scaling.wanted(1.0, [full(refused=6)]) == 2


def test_many_refusals_add_many_servers_at_once() -> None:
    """96 refused clients retry about twice in ten seconds at the only server: 192 refusals."""
    scaling = Scaling(section())
    scaling.wanted(0.0, [full()])
    assert scaling.wanted(1.0, [full(refused=192)]) == 4


def test_client_refused_by_all_servers_is_counted_once() -> None:
    scaling = Scaling(section())
    scaling.wanted(0.0, [full(), full(), full()])
    assert scaling.wanted(1.0, [full(192), full(192), full(192)]) == 6  # 96 clients, 32 places each


def test_starting_server_counts_as_capacity() -> None:
    scaling = Scaling(section())
    scaling.wanted(0.0, [full()])
    assert scaling.wanted(1.0, [full(refused=20)]) == 2
    assert scaling.wanted(2.0, [full(refused=40), None]) == 2


def test_number_of_servers_is_at_most_the_maximum() -> None:
    scaling = Scaling(section(max_rlx_servers=3))
    scaling.wanted(0.0, [full()])
    assert scaling.wanted(1.0, [full(refused=10_000)]) == 3


def test_buffer_of_places_is_kept_before_any_refusal() -> None:
    scaling = Scaling(section(free_places=40))
    assert scaling.wanted(0.0, [serving(0)]) == 2  # one server has only 32 places
    assert after(Scaling(section(free_places=40)), 100.0, [serving(0), serving(0)]) == 2


def test_unneeded_server_is_removed_after_the_idle_time() -> None:
    scaling = Scaling(section())
    servers: list[Occupancy | None] = [serving(8), serving(8)]
    assert [scaling.wanted(float(second), servers) for second in range(11)] == [2] * 10 + [1]


def test_server_stays_if_its_connections_fit_nowhere_else() -> None:
    assert after(Scaling(section()), 100.0, [serving(20), serving(20)]) == 2


def test_refusal_restarts_the_idle_time() -> None:
    scaling = Scaling(section())
    for second in range(9):
        scaling.wanted(float(second), [serving(8), serving(8)])
    scaling.wanted(9.0, [serving(8), Occupancy(8, 24, 1)])
    later = [scaling.wanted(10.0 + second, [serving(8), Occupancy(8, 24, 1)]) for second in range(40)]
    assert later.index(1) >= RETRY_SECONDS + 10.0 - 1.0


def test_timeout_scaling_moves_no_connection() -> None:
    timeout = lambda: Scaling(section(scaling="timeout"))  # noqa: E731
    assert after(timeout(), 100.0, [serving(1), serving(1)]) == 2
    assert after(timeout(), 100.0, [serving(1), serving(0)]) == 1


def test_minimum_number_of_servers_stays() -> None:
    assert after(Scaling(section(rlx_servers=2)), 100.0, [serving(0), serving(0)]) == 2


def test_restarted_server_counts_refusals_from_zero() -> None:
    scaling = Scaling(section())
    scaling.wanted(0.0, [full(refused=50)])
    assert scaling.wanted(1.0, [full(refused=0)]) == 1
    assert scaling.wanted(2.0, [full(refused=1)]) == 2


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"scaling": "refusals"}, "needs max_rlx_servers"),
        ({"scaling": "fixed", "max_rlx_servers": 4}, "has no effect with scaling fixed"),
        ({"scaling": "timeout", "max_rlx_servers": 4, "free_places": 3}, "free_places has no effect"),
        ({"scaling": "refusals", "max_rlx_servers": 2, "rlx_servers": 3}, "less than rlx_servers"),
    ],
)
def test_invalid_scaling_keys_are_refused(keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ClusterSection.model_validate(keys)
