from __future__ import annotations

import os

import psutil
import pytest

from relaax.metrics.system import ProcessUsage, Sampler


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sample_has_memory_and_processor_of_process() -> None:
    clock = Clock()
    figures = ProcessUsage(clock=clock)
    before = sum(os.times()[:2])
    while sum(os.times()[:2]) - before < 0.2:
        pass
    clock.now += 0.4
    sample = figures.sample()
    assert sample["processor_percent"] == pytest.approx(50, abs=25)
    assert 5 < sample["memory_mb"] < psutil.virtual_memory().total / 1e6
    assert set(figures.sample()) == {"memory_mb"}, "no time has passed"


def test_sample_is_taken_per_interval_and_returned_once() -> None:
    clock = Clock()
    sampler = Sampler(interval=10.0, clock=clock, processor=lambda: 0.0)
    own = {"worker/memory_mb", "worker/processor_percent", "machine/available_memory_mb"}
    server = {"server/memory_mb", "server/processor_percent"}
    seen = []
    for now in (1.0, 5.0, 12.0, 23.0, 34.0):
        clock.now = now
        sampler.beat()
        seen.append(set(sampler.take()) if sampler.found else None)
        assert not sampler.found
    assert seen == [own | server, None, own, own, own | server]


def test_slow_samples_are_taken_less_often() -> None:
    clock = Clock()
    spent = iter((0.0, 0.0075, 0.0075, 0.01, 0.01, 0.0125))  # before and after each of three samples
    sampler = Sampler(interval=10.0, clock=clock, processor=lambda: next(spent))
    seen = []
    for clock.now in (1.0, 12.0, 30.0, 32.0, 41.0, 43.0):
        sampler.beat()
        seen.append(bool(sampler.take()))
    assert seen == [True, False, False, True, False, True], "the interval is 30 s, then 10 s"
