"""Tests of admission: the limits on workers and on memory."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from relaax.server.rlx_server.listening import admission
from relaax.server.rlx_server.listening.admission import FORKED, MEGABYTE, SPAWNED, Admission


class Machine:
    """A machine whose memory and clock a test sets. Each worker has `worker_megabytes` of its own."""

    def __init__(self) -> None:
        self.available_megabytes = 10_000.0
        self.worker_megabytes: dict[int, float] = {}
        self.now = 100.0
        self.measured_pids: list[int] = []

    def process(self, pid: int) -> SimpleNamespace:
        self.measured_pids.append(pid)
        if pid not in self.worker_megabytes:
            raise psutil.NoSuchProcess(pid)
        size = self.worker_megabytes[pid] * MEGABYTE
        return SimpleNamespace(memory_full_info=lambda: SimpleNamespace(uss=size))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine()
    memory = lambda: SimpleNamespace(available=machine.available_megabytes * MEGABYTE)  # noqa: E731
    monkeypatch.setattr(admission.psutil, "virtual_memory", memory)
    monkeypatch.setattr(admission.psutil, "Process", machine.process)
    monkeypatch.setattr(admission.time, "monotonic", lambda: machine.now)
    return machine


def test_connection_past_max_workers_is_refused_with_the_limit(machine: Machine) -> None:
    two = Admission(max_workers=2, reserve_megabytes=0)
    assert two.refusal([1]) is None
    assert "2 connections" in (two.refusal([1, 2]) or "")


def test_memory_below_worker_size_plus_reserve_is_refused(machine: Machine) -> None:
    admission_ = Admission(max_workers=9, reserve_megabytes=200)
    machine.available_megabytes = 351  # without a worker to measure, 150 MB are assumed
    assert admission_.refusal([]) is None
    machine.available_megabytes = 349
    sentence = admission_.refusal([]) or ""
    assert "349 MB" in sentence
    assert "150 MB" in sentence
    assert "200 MB" in sentence


def test_worker_size_is_measured_from_running_workers(machine: Machine) -> None:
    admission_ = Admission(max_workers=9, reserve_megabytes=0)
    machine.worker_megabytes = {1: 500, 2: 700}
    assert admission_.refusal([1, 2, 3]) is None  # worker 3 has just ended
    machine.now += 60
    machine.available_megabytes = 599
    assert "600 MB" in (admission_.refusal([1, 2]) or "")
    machine.available_megabytes = 601
    assert admission_.refusal([1, 2]) is None


def test_workers_are_sampled_at_most_once_per_interval(machine: Machine) -> None:
    admission_ = Admission(max_workers=99, reserve_megabytes=0)
    machine.worker_megabytes = dict.fromkeys(range(1, 51), 100.0)
    admission_.refusal(range(1, 51))
    measured = len(machine.measured_pids)
    assert 0 < measured <= admission.SAMPLED_WORKERS
    machine.now += admission.SAMPLE_SECONDS / 2
    admission_.refusal(range(1, 51))
    assert len(machine.measured_pids) == measured
    machine.now += admission.SAMPLE_SECONDS
    admission_.refusal(range(1, 51))
    assert len(machine.measured_pids) > measured


def test_simultaneous_clients_do_not_share_the_same_free_memory(machine: Machine) -> None:
    admission_ = Admission(max_workers=99, reserve_megabytes=0)
    machine.available_megabytes = 4 * 150 + 10  # new workers have not allocated their memory yet
    admitted: list[int] = []
    while admission_.refusal(admitted) is None:
        admitted.append(len(admitted) + 1)
    assert len(admitted) == 4
    machine.now += FORKED.seconds + 1  # the available memory now reflects their allocations
    assert admission_.refusal(admitted) is None


def test_spawned_worker_reserves_more_memory_for_longer(machine: Machine) -> None:
    admission_ = Admission(max_workers=9, reserve_megabytes=0, need=SPAWNED)
    machine.available_megabytes = 2 * 500 - 1
    assert admission_.refusal([]) is None
    assert "500 MB" in (admission_.refusal([1]) or "")
    machine.now += FORKED.seconds + 1
    assert admission_.refusal([1]) is not None
    machine.now += SPAWNED.seconds
    assert admission_.refusal([1]) is None


def test_free_swap_does_not_count_as_memory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    plenty = 10**6 * MEGABYTE
    swap = SimpleNamespace(total=plenty, used=0, free=plenty)
    monkeypatch.setattr(admission.psutil, "swap_memory", lambda: swap)
    machine.available_megabytes = 300.0
    assert "has 300 MB of memory left" in (Admission(100, reserve_megabytes=256).refusal([]) or "")


def test_query_without_counting_adds_no_refusal(machine: Machine) -> None:
    admission_ = Admission(1, reserve_megabytes=256)
    assert admission_.refusal([1], counts=False) is not None
    machine.available_megabytes = 0.0
    assert admission_.refusal([], counts=False) is not None
    assert admission_.refused == {"max_workers": 0, "memory": 0}
    admission_.refusal([1])
    admission_.refusal([])
    assert admission_.refused == {"max_workers": 1, "memory": 1}
