"""Environments out of step: idle, away, leaving and coming."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from relaax.rlx import Autoreset, Init, LocalProtocolError, Reset, Step
from support.rlx_pair import AUTORESETS, Pair, assert_refused, batch, make_step, playing_pair


def step(pair: Pair, **fields: Any) -> Step:
    return make_step(pair.client.hello, **fields)


def out_of_step_pair(autoreset: str, environments: int = 2, idle: Any = None, **fields: Any) -> Pair:
    """Return a pair that may mark environments in `idle`. `idle`: those of init, whose observations are NaN."""
    pair = Pair()
    hello = pair.open(environments=environments, autoreset=AUTORESETS[autoreset], out_of_step=True, **fields)
    pair.client_sends(Init(seen(pair, idle), idle=None if idle is None else np.array(idle, np.bool_)))
    pair.act()
    assert hello.out_of_step
    return pair


def seen(pair: Pair, void: Any = None) -> list[np.ndarray]:
    """Return observations that are NaN where they are void."""
    assert pair.client.hello is not None
    (leaf,) = batch(pair.client.hello.observation_space, pair.client.hello.environments)
    leaf[np.array(void or [False] * len(leaf), np.bool_)] = np.nan
    return [leaf]


def away(pair: Pair) -> Any:
    """Return which environments are between two episodes; both ends must agree."""
    masks = pair.client.between_episodes, pair.server.between_episodes
    found = [None if mask is None else mask.tolist() for mask in masks]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("autoreset", AUTORESETS)
class TestOutOfStep:
    """In each autoreset mode."""

    def test_idle_rows_of_init_are_void_until_they_come(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[False, True])
        assert away(pair) == [False, True]
        pair.step(idle=[True, True], observation=seen(pair, [True, True]))
        pair.step(idle=[False, True], observation=seen(pair, [False, True]))
        assert away(pair) == [False, True]
        pair.step(first=[False, True])
        assert away(pair) is None
        pair.step()

    def test_all_environments_may_be_idle(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[True, True])
        pair.step(idle=[True, True], observation=seen(pair, [True, True]))
        pair.step(first=[True, True])
        pair.step(idle=[True, True], observation=seen(pair, [True, True]))
        assert away(pair) is None
        pair.step()

    def test_void_rows_must_have_the_form_of_the_space(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[True, True])
        wrong = [np.zeros((2, 3), np.float32)]
        assert_refused(pair, step(pair, idle=[True, True], observation=wrong), "observation has shape (3,)")

    def test_rows_that_are_not_idle_are_checked(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[False, True])
        message = step(pair, idle=[True, False], first=[False, True], observation=seen(pair, [True, True]))
        assert_refused(pair, message, "observation of environment 1 holds NaN")

    def test_init_checks_rows_that_are_not_idle(self, autoreset: str) -> None:
        pair = Pair()
        pair.open(environments=2, autoreset=AUTORESETS[autoreset], out_of_step=True)
        message = Init(seen(pair, [True, True]), idle=np.array([False, True]))
        assert_refused(pair, message, "observation of environment 0 holds NaN")

    @pytest.mark.parametrize(
        ("idle", "first", "right"),
        [
            ([True, False], None, "environment 1"),
            ([False, False], [True, True], "environment 1"),
            ([False, True], [False, True], "no environment"),
        ],
    )
    def test_first_marks_exactly_those_that_come(self, autoreset: str, idle: Any, first: Any, right: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[False, True])
        assert_refused(
            pair, step(pair, idle=idle, first=first), f"it must mark {right} (between two episodes and not idle)"
        )

    def test_reset_must_not_truncate_without_an_episode(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[False, True])
        cut = Reset(np.zeros(2), np.array([False, True]), seen(pair))
        assert_refused(pair, cut, "environment 1, whose episode ended before or has not begun")

    def test_reset_ends_the_episodes_in_progress(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[False, True])
        pair.client_sends(Reset(np.zeros(2), np.array([True, False]), seen(pair)))
        pair.returns(1, 0)
        pair.client_sends(Init(seen(pair)))
        pair.act()
        assert away(pair) is None
        pair.step()

    def test_every_row_of_a_reset_is_checked(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[False, True])
        cut = Reset(np.zeros(2), np.array([True, False]), seen(pair, [False, True]))
        assert_refused(pair, cut, "final_observation of environment 1 holds NaN")

    def test_later_change_of_idle_mask_has_no_effect(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset)
        pair.client_sends(Reset(np.zeros(2)))
        pair.returns(0, 0)
        idle = np.array([False, True])
        pair.client_sends(Init(seen(pair), idle=idle))
        idle[:] = True
        pair.act()
        assert away(pair) == [False, True]

    def test_partial_environment_may_be_idle(self, autoreset: str) -> None:
        pair = Pair()
        pair.open(environments=2, autoreset=AUTORESETS[autoreset], out_of_step=True)
        pair.client_sends(Init(seen(pair, [False, True]), np.array([True, True]), np.array([False, True])))
        pair.act()
        pair.step(first=[False, True])

    @pytest.mark.parametrize("message", ["init", "step"])
    def test_idle_without_the_flag_is_refused(self, autoreset: str, message: str) -> None:
        sentence = "idle marks environment 1, and the welcome has no out_of_step"
        if message == "step":
            pair = playing_pair(autoreset)
            assert_refused(pair, step(pair, idle=[False, True]), sentence)
        else:
            pair = Pair()
            pair.open(environments=2, autoreset=AUTORESETS[autoreset])
            assert_refused(pair, Init(seen(pair), idle=np.array([False, True])), sentence)

    def test_idle_mask_of_wrong_length_is_refused(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset)
        assert_refused(pair, step(pair, idle=[True]), "idle has 1 element for 2 environments")


class TestLeaving:
    """Idle environments whose episode ends."""

    def test_same_step_observation_is_void(self) -> None:
        pair = out_of_step_pair("same_step")
        ends = {"terminated": [False, True], "idle": [False, True], "observation": seen(pair, [False, True])}
        pair.step(**ends)
        assert away(pair) == [False, True]
        pair.step(idle=[False, True], observation=seen(pair, [False, True]))
        pair.step(first=[False, True])
        pair.step(terminated=[True, True])
        assert away(pair) is None

    def test_same_step_final_observation_is_checked(self) -> None:
        pair = out_of_step_pair("same_step")
        ends = {"truncated": [False, True], "idle": [False, True], "observation": seen(pair, [False, True])}
        pair.step(**ends, final_observation=seen(pair, [True, False]))
        assert away(pair) == [False, True]
        pair = out_of_step_pair("same_step")
        message = step(pair, **ends, final_observation=seen(pair, [False, True]))
        assert_refused(pair, message, "final_observation of environment 1 holds NaN")

    def test_same_step_truncation_needs_final_observation(self) -> None:
        pair = out_of_step_pair("same_step")
        message = step(pair, truncated=[True, False], idle=[True, False])
        assert_refused(pair, message, "truncated marks environment 0, and final_observation is missing")

    def test_next_step_final_observation_is_checked(self) -> None:
        pair = out_of_step_pair("next_step", 3)
        ends = {"truncated": [False, True, False], "idle": [False, True, True]}
        pair.step(**ends, observation=seen(pair, [False, False, True]))
        assert away(pair) == [False, True, False]
        pair = out_of_step_pair("next_step", 3)
        assert_refused(
            pair, step(pair, **ends, observation=seen(pair, [False, True, False])), "environment 1 holds NaN"
        )

    def test_next_step_environment_comes_when_it_is_not_idle(self) -> None:
        pair = out_of_step_pair("next_step")
        pair.step(terminated=[True, True], idle=[False, True])
        assert away(pair) == [True, True]
        pair.step(first=[True, False], idle=[False, True], observation=seen(pair, [False, True]))
        assert away(pair) == [False, True]
        pair.step(first=[False, True], terminated=[True, False])
        assert away(pair) == [True, False]

    def test_next_step_environment_may_stay_away_after_its_end(self) -> None:
        pair = out_of_step_pair("next_step")
        pair.step(terminated=[True, False])
        pair.step(idle=[True, False], observation=seen(pair, [True, False]))
        assert away(pair) == [True, False]

    @pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
    def test_environment_without_episode_cannot_leave(self, autoreset: str) -> None:
        pair = out_of_step_pair(autoreset, idle=[False, True])
        message = step(pair, idle=[False, True], terminated=[False, True])
        assert_refused(pair, message, "environment 1, whose episode ended before or has not begun")

    def test_disabled_environment_cannot_leave(self) -> None:
        pair = out_of_step_pair("disabled")
        message = step(pair, terminated=[False, True], idle=[False, True])
        assert_refused(pair, message, "environment 1, whose autoreset is DISABLED")

    def test_environment_cannot_end_in_the_step_in_which_it_comes(self) -> None:
        pair = out_of_step_pair("same_step", idle=[False, True])
        message = step(pair, first=[False, True], terminated=[False, True])
        assert_refused(pair, message, "no episode starts and ends in one step")


MODES = tuple(Autoreset)


def refuses(modes: np.ndarray, away: np.ndarray, step: Step) -> bool:
    """Return whether section 8 of the specification refuses a step. `away`: the environments between two episodes."""
    ended, idle = step.terminated | step.truncated, step.idle
    same, at = ended & (modes == Autoreset.SAME_STEP), step.observation[0]
    needed = (same & step.truncated).any()
    is_void = idle & ~(ended & (modes == Autoreset.NEXT_STEP))
    final = step.final_observation
    return bool(
        (step.first != (away & ~idle)).any()
        or (ended & (away | (modes == Autoreset.DISABLED))).any()
        or (needed if final is None else not same.any() or np.isnan(final[0][same]).any())
        or np.isnan(at[~is_void]).any()
    )


def away_after(modes: np.ndarray, away: np.ndarray, step: Step) -> np.ndarray:
    ended = step.terminated | step.truncated
    return np.where(ended, step.idle | (modes == Autoreset.NEXT_STEP), away & step.idle)


def opened(modes: Any, idle: np.ndarray) -> Pair:
    pair = Pair()
    pair.open(environments=len(modes), autoreset=tuple(modes), out_of_step=True)
    pair.client_sends(Init(seen(pair, idle.tolist()), idle=idle if idle.any() else None))
    pair.act()
    return pair


def agrees(pair: Pair, modes: np.ndarray, away: np.ndarray, step: Step) -> bool:
    """Assert that a step is refused exactly if it must be, and its effect. Return whether it was sent."""
    masks = {name: getattr(step, name) for name in ("terminated", "truncated", "first", "idle")}
    sent = Step(step.reward, step.observation, final_observation=step.final_observation)
    for name, mask in masks.items():
        setattr(sent, name, mask if mask.any() else None)
    if refuses(modes, away, step):
        with pytest.raises(LocalProtocolError):
            pair.client.send(sent)
        return False
    pair.client_sends(sent)
    pair.act()
    return True


def test_every_step_of_one_environment_is_judged_as_specified() -> None:
    """All combinations of autoreset mode, state and fields."""
    flags = (False, True)
    judged = [0, 0]
    for mode, before, idle, terminated, truncated, first, void in product(MODES, *[flags] * 6):
        for final in (None, 0.0, np.nan):
            modes, away = np.array([mode]), np.array([before])
            pair = opened([mode], away)
            one = Step(
                np.ones(1),
                seen(pair, [void]),
                np.array([terminated]),
                np.array([truncated]),
                None if final is None else [np.full((1, 2), final, np.float32)],
                np.array([first]),
                idle=np.array([idle]),
            )
            sent = agrees(pair, modes, away, one)
            judged[sent] += 1
            if sent:
                assert (pair.server.between_episodes is not None) == away_after(modes, away, one).any()
    assert judged == [540, 36]


def test_random_steps_of_mixed_modes_are_judged_as_specified() -> None:
    random = np.random.default_rng(1)
    sent = 0
    for _ in range(60):
        modes, away = random.choice(MODES, 4), random.random(4) < 0.5
        pair = opened([Autoreset(mode) for mode in modes], away)
        for _ in range(40):
            one = random_step(random, pair, modes, away)
            if agrees(pair, modes, away, one):
                sent += 1
                away = away_after(modes, away, one)
                marked = pair.server.between_episodes
                assert np.array_equal(away, np.zeros(4, np.bool_) if marked is None else marked)
    assert 800 < sent < 1600  # of 2400


def random_step(random: np.random.Generator, pair: Pair, modes: np.ndarray, away: np.ndarray) -> Step:
    """Return a step that is right, or wrong in a few fields."""
    idle = random.random(4) < 0.5
    ended = (random.random(4) < 0.3) & ~away & (modes != Autoreset.DISABLED)
    cut = ended & (random.random(4) < 0.5)
    first = away & ~idle
    void = idle & ~(ended & (modes == Autoreset.NEXT_STEP))
    same = ended & (modes == Autoreset.SAME_STEP)
    final = seen(pair, (~same).tolist()) if same.any() else None
    masks = [ended & ~cut, cut, first, idle, void, ~same]
    if random.random() < 0.5:
        masks[random.integers(6)] ^= random.random(4) < 0.4
        final = seen(pair, masks[5].tolist()) if random.random() < 0.8 else None
    ended_by_rule, cut, first, idle, void, _ = masks
    return Step(np.ones(4), seen(pair, void.tolist()), ended_by_rule, cut, final, first, idle=idle)
