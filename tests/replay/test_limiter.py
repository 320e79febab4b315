from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from relaax.replay.table.limiter import RateLimiter
from support.processes import wait_until


def ready(ratio: float, min_size: int, buffer: float) -> RateLimiter:
    """A limiter that has just reached `min_size`."""
    limiter = RateLimiter(ratio, min_size, buffer)
    for _ in range(min_size):
        assert limiter.await_insert(1, 0)
    return limiter


def is_allowed(count_items: Callable[[int, float], bool], undo: Callable[[int], None], count: int) -> bool:
    """Return whether `count` items are allowed now, without counting them."""
    allowed = count_items(count, 0)
    if allowed:
        undo(count)
    return allowed


@pytest.mark.parametrize(
    ("ratio", "min_size", "buffer", "batch", "drawn"),
    [(8.0, 100, 64.0, 4, 32), (0.25, 10, 8.0, 32, 8), (1.0, 1, 1.0, 1, 1), (3.7, 50, 40.0, 7, 11)],
)
def test_one_side_can_always_continue_within_the_buffer(
    ratio: float, min_size: int, buffer: float, batch: int, drawn: int
) -> None:
    limiter = RateLimiter(ratio, min_size, buffer)
    rng = np.random.default_rng(0)
    for _ in range(3000):
        may_insert = is_allowed(limiter.await_insert, limiter.undo_insert, batch)
        may_sample = is_allowed(limiter.await_sample, limiter.undo_sample, drawn)
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


def test_balance_stays_within_the_error_buffer() -> None:
    limiter = RateLimiter(2.0, 10, 4.0)
    for _ in range(10):
        assert not limiter.await_sample(1, 0)
        assert limiter.await_insert(1, 0)
    assert [limiter.await_insert(1, 0) for _ in range(2)] == [True, True]  # inserts are 4 samples ahead
    assert not limiter.await_insert(1, 0)
    assert [limiter.await_sample(1, 0) for _ in range(8)] == [True] * 8  # inserts are 4 samples behind
    assert not limiter.await_sample(1, 0)
    assert limiter.samples == 8
    assert limiter.await_insert(1, 0)


def test_free_inserts_never_wait_and_samples_do() -> None:
    limiter = RateLimiter(2.0, 10, 4.0, inserts_wait=False)
    assert all(limiter.await_insert(50, 0) for _ in range(4))
    assert limiter.force_insert(50)
    assert (limiter.inserts, limiter.overruns) == (250, 0)
    assert limiter.balance == 24  # the excess is not made up for
    assert [limiter.await_sample(4, 0) for _ in range(3)] == [True, True, False]


def test_only_min_size_applies_without_a_ratio() -> None:
    limiter = RateLimiter(None, 5)
    assert not limiter.await_sample(1, 0)
    assert limiter.await_insert(4, 0)
    assert not limiter.await_sample(1, 0)
    assert limiter.await_insert(1000, 0)
    assert all(limiter.await_sample(10_000, 0) for _ in range(100))


def test_forced_inserts_do_not_raise_the_balance() -> None:
    limiter = ready(2.0, 10, 4.0)
    assert limiter.await_insert(2, 0)
    started = time.monotonic()
    assert not limiter.await_insert(1, 0.05)
    assert time.monotonic() - started >= 0.05
    assert limiter.inserts == 12
    assert not limiter.force_insert(1)
    for _ in range(1000):  # without learners, actors continue
        assert not limiter.force_insert(2)
    assert (limiter.overruns, limiter.inserts) == (2001, 2013)
    samples = 0
    while limiter.await_sample(1, 0):
        samples += 1
    assert samples == 8  # as if there had been no forced inserts


def test_waiting_caller_is_woken_by_the_other_side() -> None:
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


def test_small_inserts_do_not_starve_a_large_one() -> None:
    limiter = ready(1.0, 10, 4.0)
    assert limiter.await_insert(4, 0)
    large = threading.Thread(target=lambda: served.append(limiter.await_insert(3, 60)))
    served: list[bool] = []
    large.start()
    wait_until(lambda: len(limiter._inserting) == 1, "an insert waits")
    for _ in range(2):
        assert limiter.await_sample(1, 0)
        assert not limiter.await_insert(1, 0), "it must not overtake"
    assert limiter.await_sample(1, 0)
    large.join(60)
    assert (served, limiter.inserts, len(limiter._inserting) + len(limiter._sampling)) == ([True], 17, 0)


def test_caller_after_its_timeout_leaves_the_queue() -> None:
    limiter = ready(1.0, 10, 4.0)
    assert limiter.await_insert(4, 0)
    assert not limiter.await_insert(4, 0.01)
    assert limiter.await_sample(1, 0)
    assert limiter.await_insert(1, 0)


def test_undone_inserts_and_samples_are_not_counted() -> None:
    limiter = ready(2.0, 10, 4.0)
    limiter.await_insert(2, 0)
    limiter.undo_insert(2)
    assert (limiter.inserts, limiter.balance) == (10, 20.0)
    limiter.await_sample(3, 0)
    limiter.undo_sample(3)
    assert (limiter.samples, limiter.balance) == (0, 20.0)


def test_state_is_restored() -> None:
    limiter, other = ready(2.0, 10, 4.0), RateLimiter(2.0, 10, 4.0)
    limiter.await_sample(3, 0)
    for _ in range(5):
        limiter.force_insert(1)
    assert limiter.overruns == 2
    other.restore(limiter.state())
    assert (other.inserts, other.samples, other.overruns) == (limiter.inserts, limiter.samples, limiter.overruns)
    assert other.balance == limiter.balance
    assert other.await_sample(1, 0)


def test_restored_balance_is_clamped_to_the_bounds() -> None:
    loose = ready(2.0, 10, 400.0)
    assert loose.await_insert(150, 0)
    tight = RateLimiter(2.0, 10, 4.0)
    tight.restore(loose.state())
    assert (tight.inserts, tight.balance) == (160, 24.0)
    starved = ready(2.0, 10, 400.0)
    assert starved.await_sample(300, 0)
    tight.restore(starved.state())
    assert tight.balance == 16.0
    few = RateLimiter(2.0, 100, 400.0)
    few.restore(starved.state())
    assert few.balance == -280.0, "the bounds apply only after min_size"


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
    limiter, first, second = ready(1.0, 10, 4.0), list[bool](), list[bool]()
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
def test_invalid_limits_are_rejected(arguments: tuple[float, int, float], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RateLimiter(*arguments)


def test_batches_beyond_the_buffer_are_rejected() -> None:
    limiter = RateLimiter(8.0, 100, 16.0)
    with pytest.raises(ValueError, match="3 items at a time need an error_buffer of at least 24, not 16"):
        limiter.await_insert(3, 0)
    with pytest.raises(ValueError, match="need an error_buffer of at least 17"):
        limiter.await_sample(17, 0)
    with pytest.raises(ValueError, match="at least 0, not -1"):
        limiter.await_insert(-1, 0)
