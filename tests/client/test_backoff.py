import pytest

from relaax.client.connection.backoff import FIRST_WAIT, LONGEST_WAIT, Backoff
from relaax.client.connection.failure import ConnectionInterrupted, Failure
from relaax.rlx import ErrorCode


class Clock:
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


def test_waits_double_up_to_a_bound():
    clock = Clock()
    tried = backoff(None, clock)
    for _ in range(12):
        tried.failed(ConnectionInterrupted("gone"))
        tried.wait()
    assert clock.slept[:4] == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]
    assert clock.slept[-1] == LONGEST_WAIT
    assert max(clock.slept) == LONGEST_WAIT


def test_jitter_halves_a_wait_at_most():
    clock = Clock()
    assert backoff(None, clock, min).failed(ConnectionInterrupted("gone")) == FIRST_WAIT / 2


def test_nothing_to_wait_for_without_a_failure():
    clock = Clock()
    backoff(None, clock).wait()
    assert clock.slept == []


def test_a_wait_is_slept_once():
    clock = Clock()
    tried = backoff(None, clock)
    tried.failed(ConnectionInterrupted("gone"))
    tried.wait()
    tried.wait()
    assert clock.slept == [FIRST_WAIT]


def test_the_servers_wait_is_honoured_and_never_shortened():
    clock = Clock()
    assert backoff(None, clock, min).failed(ConnectionInterrupted("full", retry_after=5.0)) == 5.0
    assert backoff(None, clock, max).failed(ConnectionInterrupted("full", retry_after=5.0)) == pytest.approx(6.0)


def full(seconds):
    return ConnectionInterrupted("full", retry_after=seconds)


def test_several_servers_are_tried_before_the_shortest_wait():
    clock = Clock()
    tried = backoff(None, clock, min)
    for _ in range(2):
        assert [tried.failed(full(5.0), elsewhere=True), tried.failed(full(2.0), elsewhere=True)] == [0.0, 0.0]
        assert tried.failed(full(30.0)) == 2.0
        tried.wait()
    assert clock.slept == [2.0, 2.0]


def test_server_without_a_wait_shortens_that_of_all():
    clock = Clock()
    tried = backoff(None, clock, max)
    tried.failed(full(30.0), elsewhere=True)
    assert tried.failed(ConnectionInterrupted("gone")) == FIRST_WAIT


def test_requested_waits_count_for_one_round():
    clock = Clock()
    tried = backoff(None, clock, min)
    tried.failed(full(2.0), elsewhere=True)
    tried.failed(full(30.0))
    tried.failed(full(9.0), elsewhere=True)
    assert tried.failed(full(30.0)) == 9.0
    tried.failed(full(1.0), elsewhere=True)
    tried.succeeded()
    assert tried.failed(full(30.0)) == 30.0


def test_waits_double_with_each_round_of_servers():
    clock = Clock()
    tried = backoff(None, clock)
    for _ in range(4):
        for _ in range(2):
            tried.failed(ConnectionInterrupted("gone"), elsewhere=True)
            tried.wait()
        tried.failed(ConnectionInterrupted("gone"))
        tried.wait()
    assert clock.slept == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT, 8 * FIRST_WAIT]


def test_another_server_is_tried_instead_of_giving_up():
    clock = Clock()
    tried = backoff(3.0, clock, min)
    assert tried.failed(full(60.0), elsewhere=True) == 0.0
    assert tried.failed(full(1.0)) == 1.0
    tried.wait()
    clock.now += 2.0
    with pytest.raises(Failure, match="gave up after 3 s"):
        tried.failed(full(0.0), elsewhere=True)


def test_success_begins_again():
    clock = Clock()
    tried = backoff(10.0, clock)
    for _ in range(3):
        tried.failed(ConnectionInterrupted("gone"))
    clock.now += 9.0
    tried.succeeded()
    clock.now += 9.0
    assert tried.failed(ConnectionInterrupted("gone")) == FIRST_WAIT


def test_gives_up_when_the_time_is_over_and_says_why():
    clock = Clock()
    tried = backoff(3.0, clock)
    with pytest.raises(Failure, match=r"no route.*3 s") as gave_up:
        for _ in range(20):
            tried.failed(ConnectionInterrupted("no route", code=ErrorCode.UNAVAILABLE))
            tried.wait()
    assert clock.now - 1000.0 == pytest.approx(3.0)  # the last attempt is made at the very end
    assert gave_up.value.code is ErrorCode.UNAVAILABLE


def test_does_not_wait_for_a_server_that_asks_for_longer_than_there_is():
    clock = Clock()
    with pytest.raises(Failure, match="full"):
        backoff(3.0, clock).failed(ConnectionInterrupted("full", retry_after=60.0))
    assert clock.slept == []


def test_zero_seconds_mean_one_attempt():
    with pytest.raises(Failure):
        backoff(0.0, Clock()).failed(ConnectionInterrupted("gone"))


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_no_time_at_all_is_refused(seconds):
    with pytest.raises(ValueError, match="retry_seconds"):
        Backoff(seconds)
