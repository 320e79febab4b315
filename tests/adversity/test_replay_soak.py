"""A training with replay memory whose processes are killed. Every update and every item is accounted for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from relaax.replay.interfaces import Insertion
from relaax.replay.local import LocalReplay
from relaax.replay.spec import Field, TableDeclaration, TableSpec
from support.replay_soak import STOP, TASKS, VICTIMS, ReplaySoak, ReplaySoakPlan
from support.replay_soak_items import SERIAL, NumberedItems, items_doubled, items_seen, items_sent, with_serials
from support.run import Runs

pytestmark = pytest.mark.checks("relaax/server", "relaax/replay", "relaax/checkpoint", "relaax/transport")

DECLARATION = with_serials(TableDeclaration(TableSpec("numbers", {"number": Field("int64")}, 100)))


def test_sent_and_sampled_items_are_counted(tmp_path: Path) -> None:
    memory = LocalReplay(DECLARATION, environments=1)
    items = NumberedItems(memory, tmp_path, 3)
    for _ in range(2):
        items.writers[0].insert(Insertion({"number": np.arange(4)}))
    while items_seen(tmp_path) < 8:
        draw(items)
    assert (items_sent(tmp_path), items_doubled(tmp_path)) == (8, [])


def test_duplicate_and_unknown_items_are_reported(tmp_path: Path) -> None:
    memory = LocalReplay(DECLARATION, environments=1)
    items = NumberedItems(memory, tmp_path, 0)
    items.writers[0].insert(Insertion({"number": np.arange(2)}))
    memory.writers[0].insert(Insertion({"number": np.arange(2), SERIAL: np.array([1, 2])}))
    while len(items_doubled(tmp_path)) < 2:
        draw(items)
    errors = "; ".join(items_doubled(tmp_path))
    assert "item 0x1 is in (" in errors and "item 0x2 was sampled, but was never sent" in errors


def draw(items: NumberedItems) -> None:
    sampled = items.sample(8, 1.0)
    assert sampled is not None
    items.see(sampled)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("algorithm", TASKS)
def test_replay_training_survives_killed_processes(runs: Runs, tmp_path: Path, short: bool, algorithm: str) -> None:
    kills, stops = (1, 1) if short else (10, 5)
    plan = ReplaySoakPlan(kills=kills, stops=stops, algorithm=algorithm)
    account = ReplaySoak(plan, runs, tmp_path).run()
    assert account.violations == []
    assert account.faults == {**dict.fromkeys(VICTIMS, plan.kills), STOP: plan.stops}
    assert account.ledger.returns >= 1, "a checkpoint was restored"
    assert account.ledger.acknowledged[0] > 20 * len(account.calms)
    assert account.duplicates > 0, "an insert was repeated"
    assert account.inserted > 0 and account.seen > 0.1 * account.sent
