"""Tests of environments that are limited to a rate of steps."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from environments.OpenAI_Gym import main as gym
from relaax.client import run
from relaax.client.program.measuring import Paced
from support.processes import Processes
from support.programs import refusal


class Clock:
    """A simulated clock that advances only by sleeping and answering."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class SlowAgent:
    """An agent whose answers take `seconds`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self.seconds = clock, seconds

    def init(self, states: Any) -> str:
        return self.send(states)

    def send(self, *outcome: Any, **more: Any) -> str:
        self._clock.now += self.seconds
        return "action"

    step = send

    def reset(self, *outcome: Any, **more: Any) -> None:
        return None


def test_actions_are_returned_at_the_given_rate() -> None:
    clock = Clock()
    paced = Paced(SlowAgent(clock, 0.01), 10.0, clock, clock.sleep)
    start, times = clock.now, []
    assert paced.init(0) == "action"
    for _ in range(5):
        assert paced.step(0) == paced.send(0) == "action"
        times.append(clock.now)
    assert clock.now - start == pytest.approx(10 / 10.0 + 0.01)
    assert paced.reset(0) is None


def test_late_action_is_not_caught_up() -> None:
    clock = Clock()
    agent = SlowAgent(clock, 0.5)
    paced = Paced(agent, 10.0, clock, clock.sleep)
    paced.send(0)
    agent.seconds = 0.0
    after_delay = clock.now
    for _ in range(3):
        paced.send(0)
    assert clock.now - after_delay == pytest.approx(0.3)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_rate_that_is_not_positive_and_finite_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Paced(None, rate)


def test_random_actions_are_limited_to_the_rate(tmp_path: Path) -> None:
    summary = run("CartPole-v1", "random", steps=12, rate=100.0, measure=tmp_path / "speed.jsonl")
    assert summary.steps == 12
    assert summary.seconds >= 0.09, "about ten periods between eleven actions; the end of an episode may save one"
    assert json.loads((tmp_path / "speed.jsonl").read_text().splitlines()[-1])["steps"] == 12


@pytest.mark.slow
@pytest.mark.checks("relaax/client", "environments")
def test_programs_have_the_option_rate(processes: Processes) -> None:
    main = Path(__file__).parents[2] / "environments" / "OpenAI_Gym" / "main.py"
    program = processes.start(sys.executable, main, "random", "CartPole-v1", "2", "--rate", "200", "--steps", "60")
    assert program.wait(60.0) == 0, program.report()
    assert program.lines[-1].startswith("60 steps")
    assert "expected a number of steps per second above 0, not 0" in refusal(
        gym, "random", "CartPole-v1", "--rate", "0"
    )
