"""Environments that are held to a rate."""

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
    """Time that only sleeping and working make pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


class Answering:
    """An agent that takes its time."""

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


def test_actions_come_when_they_are_due() -> None:
    clock = Clock()
    paced = Paced(Answering(clock, 0.01), 10.0, clock, clock.sleep)
    begun, times = clock.now, []
    assert paced.init(0) == "action"
    for _ in range(5):
        assert paced.step(0) == paced.send(0) == "action"
        times.append(clock.now)
    assert clock.now - begun == pytest.approx(10 / 10.0 + 0.01)
    assert paced.reset(0) is None


def test_what_is_late_is_not_caught_up_with() -> None:
    clock = Clock()
    agent = Answering(clock, 0.5)
    paced = Paced(agent, 10.0, clock, clock.sleep)
    paced.send(0)
    agent.seconds = 0.0
    late = clock.now
    for _ in range(3):
        paced.send(0)
    assert clock.now - late == pytest.approx(0.3)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_is_a_number_above_0(rate: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Paced(None, rate)


def test_random_actions_are_held_to_a_rate_too(tmp_path: Path) -> None:
    summary = run("CartPole-v1", "random", steps=12, rate=100.0, measure=tmp_path / "speed.jsonl")
    assert summary.steps == 12
    assert summary.seconds >= 0.09, "ten periods between eleven actions, of which an episode's end may save some"
    assert json.loads((tmp_path / "speed.jsonl").read_text().splitlines()[-1])["steps"] == 12


@pytest.mark.slow
@pytest.mark.checks("relaax/client", "environments")
def test_the_programs_have_it_as_an_option(processes: Processes) -> None:
    main = Path(__file__).parents[2] / "environments" / "OpenAI_Gym" / "main.py"
    program = processes.start(sys.executable, main, "random", "CartPole-v1", "2", "--rate", "200", "--steps", "60")
    assert program.wait(60.0) == 0, program.report()
    assert program.lines[-1].startswith("60 steps")
    assert "expected a number of steps per second above 0, not 0" in refusal(
        gym, "random", "CartPole-v1", "--rate", "0"
    )
