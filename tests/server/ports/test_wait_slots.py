"""The limit on calls that wait."""

from __future__ import annotations

from relaax.server.ports.wait_slots import LONGEST_WAIT, WaitSlots


def test_calls_beyond_the_wait_limit_do_not_wait() -> None:
    slots = WaitSlots(count=1)
    with slots.acquire(9.0) as first, slots.acquire(9.0) as second, slots.acquire(0.0) as third:
        assert (first, second, third) == (LONGEST_WAIT, 0.0, 0.0)
    with slots.acquire(0.5) as again:
        assert again == 0.5
