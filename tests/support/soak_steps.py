"""The account of environment steps: shard 0 counts each exactly once, whatever became of its gradient."""

from __future__ import annotations

from support.soak_journal import Life, Stay
from support.soak_watch import Saved

Range = tuple[int, int]  # the least and the most


def steps_of(life: Life, incarnation: int, saved: Saved, begin: Saved | None) -> Range:
    """Steps of a worker that a checkpoint must hold beyond what its incarnation began with.

    If the two differ the worker was told of a roll-back twice in one push, or it left with its last push undecided.
    """
    low = high = 0
    for index, stay in enumerate(life.stays):
        if stay.incarnation != incarnation:
            continue
        held = _pushes(stay, saved, life.slot)
        low += sum(push.env_steps for push_id, push in stay.pushes.items() if push_id <= held[0])
        high += sum(push.env_steps for push_id, push in stay.pushes.items() if push_id <= held[1])
        if index and stay.first and held[1] >= stay.first:
            told = _told_again(life.stays[index - 1], begin)
            low += told[0] if held[0] >= stay.first else 0
            high += told[1]
    return low, high


def _pushes(stay: Stay, saved: Saved, slot: int) -> Range:
    """The number of the last push that shard 0 had counted."""
    ledger = saved.shards[0].ledger
    if stay.worker in ledger:
        return ledger[stay.worker][0], ledger[stay.worker][0]
    answered = {i: push.counts[0] for i, push in stay.pushes.items() if push.outcome is not None}
    if int(saved.shards[0].counts[slot]) <= stay.base[0]:  # it has pushed nothing yet that was applied
        return 0, max((i for i, count in answered.items() if count <= stay.base[0]), default=stay.first)
    last = max(answered, default=stay.first)  # it has left
    return last, max([last, *stay.undecided])


def _told_again(before: Stay, begin: Saved | None) -> Range:
    """Steps of the push that met a roll-back, which the new incarnation is told of unless the checkpoint has them."""
    for push_id, push in before.undecided.items():
        ledger = begin.shards[0].ledger if begin else {}
        if begin is not None and begin.incarnation != before.incarnation:
            return 0, push.env_steps  # there was another roll-back in between
        held = ledger.get(before.worker, [0])[0] >= push_id
        return (0, 0) if held else (push.env_steps, push.env_steps)
    return 0, 0
