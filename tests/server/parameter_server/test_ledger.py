from __future__ import annotations

import json

import pytest

from relaax.server.parameter_server.shard.state import Discard, Ledger, Outcome, PushOutOfOrder

APPLIED = Outcome(Discard.NONE, 2)
STALE = Outcome(Discard.STALE, 9)


def test_next_push_is_new_and_the_last_push_is_repeated() -> None:
    ledger = Ledger()
    assert ledger.recorded_outcome("a", 1) is None
    ledger.record("a", 1, APPLIED)
    assert ledger.recorded_outcome("a", 1) == APPLIED
    assert ledger.recorded_outcome("a", 2) is None
    assert ledger.recorded_outcome("b", 1) is None


@pytest.mark.parametrize("push_id", [0, 1, 4])
def test_out_of_order_push_numbers_are_refused(push_id: int) -> None:
    ledger = Ledger()
    ledger.record("a", 1, APPLIED)
    ledger.record("a", 2, APPLIED)
    with pytest.raises(PushOutOfOrder, match=f"push {push_id} after push 2"):
        ledger.recorded_outcome("a", push_id)


def test_first_push_must_have_number_1() -> None:
    for push_id in (0, 2):
        with pytest.raises(PushOutOfOrder):
            Ledger().recorded_outcome("a", push_id)


def test_full_ledger_drops_the_longest_silent_worker() -> None:
    ledger = Ledger(capacity=2)
    for worker, push_id in (("a", 1), ("b", 1), ("a", 2), ("c", 1)):
        ledger.record(worker, push_id, APPLIED)
    assert (ledger.has("a", 2), ledger.has("b", 1), ledger.has("c", 1)) == (True, False, True)
    ledger.remove("a")
    ledger.remove("unknown")
    assert len(ledger) == 1


def test_ledger_is_restored_from_json() -> None:
    ledger, other = Ledger(), Ledger()
    ledger.record("a", 1, APPLIED)
    ledger.record("b", 7, STALE)
    other.restore(json.loads(json.dumps(ledger.as_json())))
    assert other.recorded_outcome("a", 1) == APPLIED
    assert other.recorded_outcome("b", 7) == STALE
