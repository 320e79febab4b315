"""How many RLX servers are wanted, by what they say. Times are given: nothing waits."""

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
    """What is wanted in the end, asked each second."""
    wanted = len(servers)
    for second in range(int(seconds) + 1):
        wanted = scaling.wanted(begin + second, servers)
        if wanted != len(servers):
            break
    return wanted


def test_a_full_server_that_refuses_nobody_is_enough() -> None:
    assert after(Scaling(section()), 100.0, [full()]) == 1


def test_a_refusal_asks_for_a_server() -> None:
    scaling = Scaling(section())
    assert scaling.wanted(0.0, [full(refused=5)]) == 1  # of before: nobody knows when
    assert scaling.wanted(1.0, [full(refused=6)]) == 2


def test_many_refusals_ask_for_many_servers_at_once() -> None:
    """96 clients that wait come about twice in ten seconds to the one server that there is."""
    scaling = Scaling(section())
    scaling.wanted(0.0, [full()])
    assert scaling.wanted(1.0, [full(refused=192)]) == 4


def test_those_that_wait_are_not_counted_for_each_server_that_they_ask() -> None:
    scaling = Scaling(section())
    scaling.wanted(0.0, [full(), full(), full()])
    assert scaling.wanted(1.0, [full(192), full(192), full(192)]) == 6  # 96 clients, 32 places each


def test_a_server_that_starts_is_waited_for() -> None:
    scaling = Scaling(section())
    scaling.wanted(0.0, [full()])
    assert scaling.wanted(1.0, [full(refused=20)]) == 2
    assert scaling.wanted(2.0, [full(refused=40), None]) == 2


def test_no_more_than_the_most() -> None:
    scaling = Scaling(section(max_rlx_servers=3))
    scaling.wanted(0.0, [full()])
    assert scaling.wanted(1.0, [full(refused=10_000)]) == 3


def test_a_buffer_of_places_is_kept_free_before_anybody_is_refused() -> None:
    scaling = Scaling(section(free_places=40))
    assert scaling.wanted(0.0, [serving(0)]) == 2  # 32 are too few
    assert after(Scaling(section(free_places=40)), 100.0, [serving(0), serving(0)]) == 2


def test_a_server_that_the_others_can_do_without_goes_after_the_idle_time() -> None:
    scaling = Scaling(section())
    servers: list[Occupancy | None] = [serving(8), serving(8)]
    assert [scaling.wanted(float(second), servers) for second in range(11)] == [2] * 10 + [1]


def test_a_server_whose_connections_find_no_place_elsewhere_stays() -> None:
    assert after(Scaling(section()), 100.0, [serving(20), serving(20)]) == 2


def test_the_idle_time_begins_anew_with_each_refusal() -> None:
    scaling = Scaling(section())
    for second in range(9):
        scaling.wanted(float(second), [serving(8), serving(8)])
    scaling.wanted(9.0, [serving(8), Occupancy(8, 24, 1)])
    later = [scaling.wanted(10.0 + second, [serving(8), Occupancy(8, 24, 1)]) for second in range(40)]
    assert later.index(1) >= RETRY_SECONDS + 10.0 - 1.0


def test_by_time_out_nobody_is_moved() -> None:
    timeout = lambda: Scaling(section(scaling="timeout"))  # noqa: E731
    assert after(timeout(), 100.0, [serving(1), serving(1)]) == 2
    assert after(timeout(), 100.0, [serving(1), serving(0)]) == 1


def test_the_least_stays() -> None:
    assert after(Scaling(section(rlx_servers=2)), 100.0, [serving(0), serving(0)]) == 2


def test_a_server_that_was_started_again_has_refused_nobody() -> None:
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
def test_keys_that_do_not_fit_are_refused(keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ClusterSection.model_validate(keys)
