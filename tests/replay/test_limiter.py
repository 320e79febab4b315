from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from relaax.replay.table.limiter import RateLimiter
from support.processes import wait_until


def begun(ratio: float, min_size: int, buffer: float) -> RateLimiter:
    """A limiter whose samplers may just begin."""
    limiter = RateLimiter(ratio, min_size, buffer)
    for _ in range(min_size):
        assert limiter.await_insert(1, 0)
    return limiter


def tried(book: Callable[[int, float], bool], undo: Callable[[int], None], count: int) -> bool:
    """Whether so many items may pass now; nothing is booked afterwards."""
    allowed = book(count, 0)
    if allowed:
        undo(count)
    return allowed


@pytest.mark.parametrize(
    ("ratio", "min_size", "buffer", "batch", "drawn"),
    [(8.0, 100, 64.0, 4, 32), (0.25, 10, 8.0, 32, 8), (1.0, 1, 1.0, 1, 1), (3.7, 50, 40.0, 7, 11)],
)
def test_both_sides_stay_within_the_buffer_and_one_can_always_go_on(
    ratio: float, min_size: int, buffer: float, batch: int, drawn: int
) -> None:
    limiter = RateLimiter(ratio, min_size, buffer)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        may_insert = tried(limiter.await_insert, limiter.undo_insert, batch)
        may_sample = tried(limiter.await_sample, limiter.undo_sample, drawn)
        assert may_insert or may_sample
        assert not (may_sample and limiter.inserts < min_size)
        if may_sample and (not may_insert or rng.random() < 0.5):
            assert limiter.await_sample(drawn, 0)
        else:
            assert limiter.await_insert(batch, 0)
        if limiter.inserts >= min_size:
            assert abs(limiter.balance - min_size * ratio) <= buffer
    assert limiter.overruns == 0
    assert limiter.samples / (limiter.inserts - min_size) == pytest.approx(ratio, rel=0.1)


def test_the_bounds_are_those_of_the_buffer() -> None:
    limiter = RateLimiter(2.0, 10, 4.0)
    for _ in range(10):
        assert not limiter.await_sample(1, 0)
        assert limiter.await_insert(1, 0)
    assert [limiter.await_insert(1, 0) for _ in range(2)] == [True, True]  # 4 samples ahead
    assert not limiter.await_insert(1, 0)
    assert [limiter.await_sample(1, 0) for _ in range(8)] == [True] * 8  # 4 behind
    assert not limiter.await_sample(1, 0)
    assert limiter.samples == 8
    assert limiter.await_insert(1, 0)


def test_without_a_ratio_only_the_first_items_are_waited_for() -> None:
    limiter = RateLimiter(None, 5)
    assert not limiter.await_sample(1, 0)
    assert limiter.await_insert(4, 0)
    assert not limiter.await_sample(1, 0)
    assert limiter.await_insert(1000, 0)
    assert all(limiter.await_sample(10_000, 0) for _ in range(100))


def test_an_insert_waits_for_a_bounded_time_and_samplers_do_not_run_away_later() -> None:
    limiter = begun(2.0, 10, 4.0)
    assert limiter.await_insert(2, 0)
    started = time.monotonic()
    assert not limiter.await_insert(1, 0.05)
    assert time.monotonic() - started >= 0.05
    assert limiter.inserts == 12
    assert not limiter.force_insert(1)
    for _ in range(1000):  # nobody learns: actors go on
        assert not limiter.force_insert(2)
    assert (limiter.overruns, limiter.inserts) == (2001, 2013)
    samples = 0
    while limiter.await_sample(1, 0):
        samples += 1
    assert samples == 8  # as if no insert had gone on


def test_who_waits_is_woken_by_the_other_side() -> None:
    limiter = RateLimiter(1.0, 10, 2.0)
    results = []
    sampler = threading.Thread(target=lambda: results.append(limiter.await_sample(2, 60)))
    sampler.start()
    for _ in range(10):
        assert limiter.await_insert(1, 60)
    sampler.join(60)
    limiter.await_insert(2, 0)
    limiter.await_insert(2, 0)
    assert not limiter.await_insert(2, 0)
    writer = threading.Thread(target=lambda: results.append(limiter.await_insert(2, 60)))
    writer.start()
    assert limiter.await_sample(2, 0)
    writer.join(60)
    assert results == [True, True]
    assert limiter.overruns == 0


def test_threads_on_both_sides_keep_the_ratio() -> None:
    limiter = RateLimiter(4.0, 20, 32.0)

    def insert() -> None:
        for _ in range(200):
            assert limiter.await_insert(2, 60)

    def sample() -> None:
        for _ in range(195):
            assert limiter.await_sample(8, 60)

    threads = [threading.Thread(target=side) for side in (insert, insert, sample, sample)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (limiter.inserts, limiter.samples, limiter.overruns) == (800, 3120, 0)
    assert limiter.balance == 4 * 800 - 3120


def test_who_waits_is_served_in_turn_and_small_inserts_starve_no_large_one() -> None:
    limiter = begun(1.0, 10, 4.0)
    assert limiter.await_insert(4, 0)
    large = threading.Thread(target=lambda: served.append(limiter.await_insert(3, 60)))
    served: list[bool] = []
    large.start()
    wait_until(lambda: len(limiter._inserting) == 1, "an insert that waits")
    for _ in range(2):
        assert limiter.await_sample(1, 0)
        assert not limiter.await_insert(1, 0), "it would overtake"
    assert limiter.await_sample(1, 0)
    large.join(60)
    assert (served, limiter.inserts, len(limiter._inserting) + len(limiter._sampling)) == ([True], 17, 0)


def test_who_gives_up_leaves_the_queue() -> None:
    limiter = begun(1.0, 10, 4.0)
    assert limiter.await_insert(4, 0)
    assert not limiter.await_insert(4, 0.01)
    assert limiter.await_sample(1, 0)
    assert limiter.await_insert(1, 0)


def test_what_did_not_happen_is_taken_back() -> None:
    limiter = begun(2.0, 10, 4.0)
    limiter.await_insert(2, 0)
    limiter.undo_insert(2)
    assert (limiter.inserts, limiter.balance) == (10, 20.0)
    limiter.await_sample(3, 0)
    limiter.undo_sample(3)
    assert (limiter.samples, limiter.balance) == (0, 20.0)


def test_accounts_are_restored() -> None:
    limiter, other = begun(2.0, 10, 4.0), RateLimiter(2.0, 10, 4.0)
    limiter.await_sample(3, 0)
    for _ in range(5):
        limiter.force_insert(1)
    assert limiter.overruns == 2
    other.restore(limiter.state())
    assert (other.inserts, other.samples, other.overruns) == (limiter.inserts, limiter.samples, limiter.overruns)
    assert other.balance == limiter.balance
    assert other.await_sample(1, 0)


def test_restored_balance_is_moved_into_the_bounds() -> None:
    loose = begun(2.0, 10, 400.0)
    assert loose.await_insert(150, 0)
    tight = RateLimiter(2.0, 10, 4.0)
    tight.restore(loose.state())
    assert (tight.inserts, tight.balance) == (160, 24.0)
    starved = begun(2.0, 10, 400.0)
    assert starved.await_sample(300, 0)
    tight.restore(starved.state())
    assert tight.balance == 16.0
    few = RateLimiter(2.0, 100, 400.0)
    few.restore(starved.state())
    assert few.balance == -280.0, "bounds hold once sampling has begun"


def waiting(queue: object, call: Callable[[], bool], answers: list[bool]) -> threading.Thread:
    """Return a thread whose call waits in `queue`."""
    before = len(queue)  # type: ignore[arg-type]
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    wait_until(lambda: len(queue) > before, "the call waits")  # type: ignore[arg-type]
    return thread


def test_restore_wakes_waiting_samplers() -> None:
    limiter, answers = RateLimiter(None, 10), list[bool]()
    sampler = waiting(limiter._sampling, lambda: limiter.await_sample(1, 60), answers)
    other = RateLimiter(None, 10)
    assert other.await_insert(10, 0)
    limiter.restore(other.state())
    sampler.join(10)
    assert answers == [True]


def test_timeout_wakes_the_next_in_the_queue() -> None:
    limiter, first, second = begun(1.0, 10, 4.0), list[bool](), list[bool]()
    assert limiter.await_insert(3, 0)
    large = waiting(limiter._inserting, lambda: limiter.await_insert(4, 1.0), first)
    small = waiting(limiter._inserting, lambda: limiter.await_insert(1, 60), second)
    small.join(20)
    assert (first, second) == ([False], [True])
    large.join(60)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((1.0, 0, 1.0), "at least 1, not 0"),
        ((0.0, 1, 1.0), "samples_per_insert must be a finite number above 0"),
        ((float("inf"), 1, 1.0), "samples_per_insert must be a finite number above 0"),
        ((8.0, 1, 7.0), "at least 8.0, not 7.0"),
        ((0.5, 1, 0.5), "at least 1.0, not 0.5"),
        ((0.5, 1, float("nan")), "error_buffer must be a finite number of at least 1.0"),
    ],
)
def test_limits_that_cannot_be_are_refused(arguments: tuple[float, int, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RateLimiter(*arguments)


def test_batches_that_could_wait_for_ever_are_refused() -> None:
    limiter = RateLimiter(8.0, 100, 16.0)
    with pytest.raises(ValueError, match="3 items at a time need an error_buffer of at least 24, not 16"):
        limiter.await_insert(3, 0)
    with pytest.raises(ValueError, match="need an error_buffer of at least 17"):
        limiter.await_sample(17, 0)
    with pytest.raises(ValueError, match="at least 0, not -1"):
        limiter.await_insert(-1, 0)
