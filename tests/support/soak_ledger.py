"""The audit of a soak: compares the journals of the workers with every checkpoint, shard by shard."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from support.soak_journal import Life, Stay
from support.soak_steps import steps_of
from support.soak_watch import Saved, SavedShard


@dataclass
class Account:
    """The result of an audit. `violations` are sentences; a correct run has an empty list."""

    violations: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    acknowledged: list[int] = field(default_factory=list)
    undecided: int = 0
    undecided_applied: list[int] = field(default_factory=list)
    rolled_back: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    incarnations: list[int] = field(default_factory=list)
    returns: int = 0
    changes_seen: int = 0
    refused: int = 0
    sent_again: int = 0
    cuts_in_a_push: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    values_compared: int = 0
    steps_uncertain: int = 0


def audit(
    lives: list[Life], saved: list[Saved], shards: int, ended: bool = True, checked: Collection[str] = ()
) -> Account:
    """Compare the journals of the workers with the checkpoints.

    `saved`: all checkpoints of the run, the oldest first. If training has `ended`, the last one was written by an
    orderly end. Checkpoints that are in `checked` are not checked again.


    - If a worker joins an incarnation, its counters are equal to the counters in the newest checkpoint before it.
    - For each worker and shard, a checkpoint holds exactly the pushes up to the one in the shard's ledger. For workers
      that are not in the ledger, it holds the counters with which the incarnation started. The total and the version
      of each shard are the sum of the counters.
    - The last pushes of one worker in two shards of a checkpoint differ by at most one.
    - A checkpoint is a consistent cut of all workers and shards: if it lacks a push that was answered, it does not hold
      a push that was sent after that answer.
    - A push is refused only if the checkpoint to which its worker was rolled back lacks it in some shard.
    - The merged statistic has one sample for each step.
    - The global step of a checkpoint is the sum of the steps of the pushes that it holds, including discarded
      pushes.
    - The last checkpoint holds every push that was acknowledged since the last roll-back, in every shard.
    """
    account = Account()
    zero = [0] * shards
    account.acknowledged, account.undecided_applied = list(zero), list(zero)
    account.rolled_back, account.kept = list(zero), list(zero)
    by_slot = {life.slot: life for life in lives}
    account.incarnations = sorted(
        {s.incarnation for life in lives for s in life.stays} | {s.incarnation for s in saved}
    )
    begins = {i: _newest([s for s in saved if s.incarnation < i]) for i in account.incarnations}
    account.returns = sum(begin is not None for begin in begins.values())
    for life in lives:
        _check_life(account, life, begins)
        _check_refused(account, life, begins)
    for each in saved:
        account.cuts_in_a_push += _is_in_a_push(each, lives)
        if each.checkpoint_id not in checked:
            _check_saved(account, each, by_slot, begins[each.incarnation])
            _check_steps(account, each, lives, begins[each.incarnation])
            _check_cut(account, each, lives)
    if saved and ended:
        _check_last(account, saved[-1], lives, begins, shards)
    return account


def _newest(saved: list[Saved]) -> Saved | None:
    return max(saved, key=lambda s: s.order) if saved else None


def _counts(saved: Saved | None, slot: int, shards: int) -> tuple[int, ...]:
    return tuple(int(shard.counts[slot]) for shard in saved.shards) if saved else (0,) * shards


def _check_life(account: Account, life: Life, begins: dict[int, Saved | None]) -> None:
    account.violations += [f"worker {life.slot}: {sentence}" for sentence in life.broken]
    for stay in life.stays:
        expected = _counts(begins[stay.incarnation], life.slot, len(stay.base))
        account.values_compared += len(expected)
        if stay.base != expected:
            begin = begins[stay.incarnation]
            account.violations.append(
                f"worker {life.slot} started incarnation {stay.incarnation} with counters {stay.base}, but the "
                f"checkpoint before it ({begin.checkpoint_id if begin else 'none'}) has {expected}"
            )
        answered = [push for push in stay.pushes.values() if push.outcome is not None]
        account.outcomes.update(push.outcome for push in answered if push.outcome and push.gradient)
        account.ways.update(way for push in stay.pushes.values() for way in push.ways.strip("-"))
        account.sent_again += sum(push.repeats > 0 for push in stay.pushes.values())
        for shard, (last, base) in enumerate(zip(stay.last, stay.base, strict=True)):
            account.acknowledged[shard] += last - base
        account.undecided += len(stay.undecided)
        if len(stay.undecided) > 1 or any(i < max(stay.pushes) for i in stay.undecided):
            account.violations.append(f"worker {life.slot} has more than one push without an answer: {stay.undecided}")


def _check_refused(account: Account, life: Life, begins: dict[int, Saved | None]) -> None:
    """Check the refused pushes of a worker that saw roll-backs."""
    account.changes_seen += max(0, len(life.stays) - 1)
    for stay, following in itertools.pairwise(life.stays):
        for push_id, push in stay.undecided.items():
            account.refused += push.refused
            begin = begins[following.incarnation]
            if begin is None or begin.incarnation != stay.incarnation or not push.refused:
                continue
            if all(shard.ledger.get(stay.worker, [0])[0] >= push_id for shard in begin.shards):
                account.violations.append(
                    f"push {push_id} of worker {life.slot} was refused, but checkpoint {begin.checkpoint_id}, from "
                    f"which incarnation {following.incarnation} started, holds it in every shard"
                )


def _is_in_a_push(saved: Saved, lives: list[Life]) -> bool:
    """Return whether one shard holds a push that another shard lacks, and the push was answered later."""
    for stay in (stay for life in lives for stay in life.stays if stay.incarnation == saved.incarnation):
        held = [shard.ledger.get(stay.worker, [0])[0] for shard in saved.shards]
        push = stay.pushes.get(max(held))
        if push is not None and push.outcome is not None and min(held) < max(held):
            return True
    return False


def _check_cut(account: Account, saved: Saved, lives: list[Life]) -> None:
    """Check that a checkpoint holds no push that was sent after the answer to a push that it lacks."""
    held, lacking = (0, ""), (sys.maxsize, "")
    for life in lives:
        for stay in life.stays:
            if stay.incarnation != saved.incarnation:
                continue
            for index, shard in enumerate(saved.shards):
                if stay.worker not in shard.ledger:
                    continue
                last = shard.ledger[stay.worker][0]
                name = f"push %d of worker {life.slot} in shard {index}"
                if (push := stay.pushes.get(last)) is not None:
                    held = max(held, (push.sent, name % last))
                if (push := stay.pushes.get(last + 1)) is not None and push.outcome is not None:
                    lacking = min(lacking, (push.answered, name % (last + 1)))
    if held[0] > lacking[0]:
        account.violations.append(
            f"checkpoint {saved.checkpoint_id} is not a consistent cut: it holds {held[1]}, which was sent "
            f"{(held[0] - lacking[0]) / 1000:.1f} ms after the answer to {lacking[1]}, which it lacks"
        )


def _check_saved(account: Account, saved: Saved, lives: dict[int, Life], begin: Saved | None) -> None:
    for worker in set.intersection(*(set(shard.ledger) for shard in saved.shards)):
        pushes = [shard.ledger[worker][0] for shard in saved.shards]
        if max(pushes) - min(pushes) > 1:
            account.violations.append(
                f"checkpoint {saved.checkpoint_id}: the shards hold pushes {pushes} of one worker"
            )
    for index, shard in enumerate(saved.shards):
        where = f"checkpoint {saved.checkpoint_id}, shard {index}"
        total = int(shard.counts.sum())
        if not total == shard.total == shard.version:
            account.violations.append(
                f"{where}: the counters sum to {total}, the total is {shard.total}, the version is {shard.version}"
            )
        for slot in range(len(shard.counts)):
            value = int(shard.counts[slot])
            life = lives.get(slot)
            before = _counts(begin, slot, len(saved.shards))[index]
            allowed = {before} if life is None else _allowed(life, saved.incarnation, shard, index, before)
            account.values_compared += 1
            if value not in allowed:
                account.violations.append(f"{where}: the counter of worker {slot} is {value}, not in {sorted(allowed)}")


def _check_steps(account: Account, saved: Saved, lives: list[Life], begin: Saved | None) -> None:
    ranges = [steps_of(life, saved.incarnation, saved, begin) for life in lives]
    before = begin.shards[0].env_steps if begin else 0
    low, high = (before + sum(limits[end] for limits in ranges) for end in (0, 1))
    account.steps_uncertain = max(account.steps_uncertain, high - low)
    if saved.shards[0].samples != saved.shards[0].env_steps:
        account.violations.append(
            f"checkpoint {saved.checkpoint_id} is at global step {saved.shards[0].env_steps}, but its statistic has "
            f"{saved.shards[0].samples:.0f} samples"
        )
    if not low <= saved.shards[0].env_steps <= high:
        account.violations.append(
            f"checkpoint {saved.checkpoint_id} is at global step {saved.shards[0].env_steps}, but its pushes have "
            f"{low}{f' to {high}' if high > low else ''} steps"
        )


def _allowed(life: Life, incarnation: int, shard: SavedShard, index: int, before: int) -> set[int]:
    """Return the values that a shard's counter of a worker may have in a checkpoint of an incarnation."""
    stays = [stay for stay in life.stays if stay.incarnation == incarnation]
    if not stays:
        return {before}
    named = [stay for stay in stays if stay.worker in shard.ledger]
    if named:
        push_id, discard, _ = shard.ledger[named[-1].worker]
        return {_held(named[-1], push_id, discard, index)}
    # The worker has not pushed yet, or it has deregistered and was removed from the ledger.
    values = {stays[0].base[index]}
    if _may_have_left(life, stays[-1]):
        values.add(stays[-1].last[index])
        values |= {stays[-1].last[index] + 1 for push in stays[-1].undecided.values() if push.gradient}
    return values


def _held(stay: Stay, push_id: int, discard: int, index: int) -> int:
    """Return the worker's counter after push `push_id`, the newest of the worker in the shard."""
    push = stay.pushes.get(push_id)
    if push is None:  # after a roll-back, the client sends only the steps again, without an update
        return stay.base[index]
    if push.outcome is not None:
        return push.counts[index]
    return stay.before(push_id)[index] + (1 if push.gradient and discard == 0 else 0)


def _may_have_left(life: Life, stay: Stay) -> bool:
    return stay is life.stays[-1]


def _check_last(account: Account, last: Saved, lives: list[Life], begins: dict[int, Saved | None], shards: int) -> None:
    later = {}
    for index, incarnation in enumerate(account.incarnations):
        following = account.incarnations[index + 1 :]
        later[incarnation] = begins[following[0]] if following else last
    for life in lives:
        for stay in life.stays:
            ends = _counts(later[stay.incarnation], life.slot, shards)
            begun = stay.base
            if stay.incarnation == last.incarnation and any(
                end < seen for end, seen in zip(ends, stay.last, strict=True)
            ):
                account.violations.append(
                    f"worker {life.slot} saw counters {stay.last}, but the last checkpoint has {ends}: "
                    "acknowledged updates are lost"
                )
            for shard in range(shards):
                over = ends[shard] - stay.last[shard]
                if over > 0:
                    account.undecided_applied[shard] += over
                else:
                    account.rolled_back[shard] -= over
                account.kept[shard] += ends[shard] - begun[shard]
    for shard in range(shards):
        right = account.acknowledged[shard] + account.undecided_applied[shard] - account.rolled_back[shard]
        if not right == account.kept[shard] == last.shards[shard].total:
            account.violations.append(
                f"shard {shard}: {account.acknowledged[shard]} acknowledged + {account.undecided_applied[shard]} "
                f"undecided - {account.rolled_back[shard]} rolled back is not {last.shards[shard].total}"
            )
