"""The limit of the memory that a server shares with processes of its host."""

from __future__ import annotations

import os

import pytest

from relaax.server.ports.shared_budget import BudgetSpent, Loan, SharedBudget
from relaax.transport import segments

pytestmark = pytest.mark.skipif(not segments.SUPPORTED, reason="the system has no memory that can be handed over")

NUMBERS = 2**20
BYTES = 4 * NUMBERS


def test_lending_far_below_the_limit_counts_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a thousand workers that get their memory at the same time take a second of the server for each."""
    budget = SharedBudget(100 * BYTES)
    budget.lend(NUMBERS, read_only=False)

    def count(loan: Loan) -> int:
        raise AssertionError(f"the pages of {loan} were counted")

    monkeypatch.setattr(Loan, "bytes", property(count))
    budget.lend(NUMBERS, read_only=False)


def test_untouched_memory_does_not_count_but_touched_memory_does() -> None:
    budget = SharedBudget(2.5 * BYTES)
    lent = [budget.lend(NUMBERS, read_only=False) for _ in range(5)]  # their lengths exceed the limit
    for _, vector in lent[:2]:
        vector[:] = 1
    assert 2 * BYTES <= budget.taken() < 2.1 * BYTES
    with pytest.raises(BudgetSpent, match="bytes of shared memory are taken"):
        budget.lend(NUMBERS, read_only=True)


def test_memory_that_was_given_back_can_be_lent_again() -> None:
    budget = SharedBudget(1.5 * BYTES)
    for _ in range(4):
        loan, vector = budget.lend(NUMBERS, read_only=True)
        del vector
        os.close(loan.shared_descriptor)  # as the code that sends it
        budget.give_back(loan)
    assert budget.taken() == 0
