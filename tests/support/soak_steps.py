"""The audit of environment steps: shard 0 counts each step exactly once, whatever the outcome of its gradient."""

from __future__ import annotations

from support.soak_journal import Life, Stay
from support.soak_watch import Saved

Range = tuple[int, int]  # minimum and maximum


def steps_of(life: Life, incarnation: int, saved: Saved, begin: Saved | None) -> Range:
    """Return the range of a worker's steps that a checkpoint must hold, without those before its incarnation.

    The minimum and the maximum differ if two roll-backs happened before one push of the worker was answered, or if the
    worker deregistered before its last push was answered.
    """
    low = high = 0
    for index, stay in enumerate(life.stays):
        if stay.incarnation != incarnation:
            continue
        held = _pushes(stay, saved, life.slot)
        low += sum(push.env_steps for push_id, push in stay.pushes.items() if push_id <= held[0])
        high += sum(push.env_steps for push_id, push in stay.pushes.items() if push_id <= held[1])
        if index and stay.first and held[1] >= stay.first:
            told = _repeated_steps(life.stays[index - 1], begin)
            low += told[0] if held[0] >= stay.first else 0
            high += told[1]
    return low, high


def _pushes(stay: Stay, saved: Saved, slot: int) -> Range:
    """Return the range of the last push id that shard 0 had counted."""
    ledger = saved.shards[0].ledger
    if stay.worker in ledger:
        return ledger[stay.worker][0], ledger[stay.worker][0]
    answered = {i: push.counts[0] for i, push in stay.pushes.items() if push.outcome is not None}
    if int(saved.shards[0].counts[slot]) <= stay.base[0]:  # none of its pushes was applied yet
        return 0, max((i for i, count in answered.items() if count <= stay.base[0]), default=stay.first)
    last = max(answered, default=stay.first)  # the worker has deregistered
    return last, max([last, *stay.undecided])


def _repeated_steps(before: Stay, begin: Saved | None) -> Range:
    """Return the range of steps that are sent again after a roll-back: of the pending push, unless `begin` holds it."""
    for push_id, push in before.undecided.items():
        ledger = begin.shards[0].ledger if begin else {}
        if begin is not None and begin.incarnation != before.incarnation:
            return 0, push.env_steps  # there was another roll-back in between
        held = ledger.get(before.worker, [0])[0] >= push_id
        return (0, 0) if held else (push.env_steps, push.env_steps)
    return 0, 0
