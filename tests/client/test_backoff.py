import pytest

from relaax.client.connection.backoff import FIRST_WAIT, LONGEST_WAIT, Backoff
from relaax.client.connection.failure import ConnectionInterrupted, Failure
from relaax.rlx import ErrorCode


class Clock:
    """A simulated clock that records its sleeps."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def backoff(give_up_after, clock, pick=max):
    return Backoff(give_up_after, clock=clock, sleep=clock.sleep, uniform=lambda low, high: pick(low, high))


def test_waits_double_up_to_the_longest_wait():
    clock = Clock()
    retries = backoff(None, clock)
    for _ in range(12):
        retries.failed(ConnectionInterrupted("gone"))
        retries.wait()
    assert clock.slept[:4] == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]
    assert clock.slept[-1] == LONGEST_WAIT
    assert max(clock.slept) == LONGEST_WAIT


def test_jitter_halves_a_wait_at_most():
    clock = Clock()
    assert backoff(None, clock, min).failed(ConnectionInterrupted("gone")) == FIRST_WAIT / 2


def test_wait_without_a_failure_does_not_sleep():
    clock = Clock()
    backoff(None, clock).wait()
    assert clock.slept == []


def test_a_wait_is_slept_once():
    clock = Clock()
    retries = backoff(None, clock)
    retries.failed(ConnectionInterrupted("gone"))
    retries.wait()
    retries.wait()
    assert clock.slept == [FIRST_WAIT]


def test_wait_requested_by_the_server_is_never_shortened():
    clock = Clock()
    assert backoff(None, clock, min).failed(ConnectionInterrupted("full", retry_after=5.0)) == 5.0
    assert backoff(None, clock, max).failed(ConnectionInterrupted("full", retry_after=5.0)) == pytest.approx(6.0)


def full(seconds):
    return ConnectionInterrupted("full", retry_after=seconds)


def test_several_servers_are_tried_before_the_shortest_wait():
    clock = Clock()
    retries = backoff(None, clock, min)
    for _ in range(2):
        assert [retries.failed(full(5.0), elsewhere=True), retries.failed(full(2.0), elsewhere=True)] == [0.0, 0.0]
        assert retries.failed(full(30.0)) == 2.0
        retries.wait()
    assert clock.slept == [2.0, 2.0]


def test_server_without_a_requested_wait_shortens_the_wait():
    clock = Clock()
    retries = backoff(None, clock, max)
    retries.failed(full(30.0), elsewhere=True)
    assert retries.failed(ConnectionInterrupted("gone")) == FIRST_WAIT


def test_requested_waits_count_for_one_round():
    clock = Clock()
    retries = backoff(None, clock, min)
    retries.failed(full(2.0), elsewhere=True)
    retries.failed(full(30.0))
    retries.failed(full(9.0), elsewhere=True)
    assert retries.failed(full(30.0)) == 9.0
    retries.failed(full(1.0), elsewhere=True)
    retries.succeeded()
    assert retries.failed(full(30.0)) == 30.0


def test_waits_double_with_each_round_of_servers():
    clock = Clock()
    retries = backoff(None, clock)
    for _ in range(4):
        for _ in range(2):
            retries.failed(ConnectionInterrupted("gone"), elsewhere=True)
            retries.wait()
        retries.failed(ConnectionInterrupted("gone"))
        retries.wait()
    assert clock.slept == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]


def test_another_server_is_tried_instead_of_giving_up():
    clock = Clock()
    retries = backoff(3.0, clock, min)
    assert retries.failed(full(60.0), elsewhere=True) == 0.0
    assert retries.failed(full(1.0)) == 1.0
    retries.wait()
    clock.now += 2.0
    with pytest.raises(Failure, match="gave up after 3 s"):
        retries.failed(full(0.0), elsewhere=True)


def test_success_resets_the_wait_and_the_time_limit():
    clock = Clock()
    retries = backoff(10.0, clock)
    for _ in range(3):
        retries.failed(ConnectionInterrupted("gone"))
    clock.now += 9.0
    retries.succeeded()
    clock.now += 9.0
    assert retries.failed(ConnectionInterrupted("gone")) == FIRST_WAIT


def test_gives_up_after_the_time_limit_with_the_last_error():
    clock = Clock()
    retries = backoff(3.0, clock)
    with pytest.raises(Failure, match=r"no route.*3 s") as gave_up:
        for _ in range(20):
            retries.failed(ConnectionInterrupted("no route", code=ErrorCode.UNAVAILABLE))
            retries.wait()
    assert clock.now - 1000.0 == pytest.approx(3.0)  # the last attempt is made at the very end
    assert gave_up.value.code is ErrorCode.UNAVAILABLE


def test_requested_wait_past_the_time_limit_fails_at_once():
    clock = Clock()
    with pytest.raises(Failure, match="full"):
        backoff(3.0, clock).failed(ConnectionInterrupted("full", retry_after=60.0))
    assert clock.slept == []


def test_zero_retry_seconds_allow_one_attempt():
    with pytest.raises(Failure):
        backoff(0.0, Clock()).failed(ConnectionInterrupted("gone"))


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_negative_or_nan_retry_seconds_are_refused(seconds):
    with pytest.raises(ValueError, match="retry_seconds"):
        Backoff(seconds)
