"""The core that a worker claims for itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from relaax.server.rlx_server.workers import own_core
from support.offline import SERVER, write_config
from support.processes import Processes, wait_until
from support.rlx_line import Line

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin processes")

CLAIM = """
import os, sys
from relaax.server.rlx_server.workers import own_core
own_core._NAME = "\\0" + sys.argv[1] + "-{}"
claim = own_core.claim_core()
print(claim is not None, *sorted(os.sched_getaffinity(0)), flush=True)
sys.stdin.read()
"""


def claiming(name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CLAIM, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_each_process_has_a_core_until_none_is_left(tmp_path: Path) -> None:
    cores, name = sorted(os.sched_getaffinity(0)), str(tmp_path)
    processes = [claiming(name) for _ in range(len(cores) + 1)]
    try:
        answers = sorted(process.stdout.readline().split() for process in processes if process.stdout)
        assert answers[0] == ["False", *map(str, cores)], "without a claim, a process may use every core"
        assert sorted(int(core) for found, core in answers[1:] if found == "True") == cores
    finally:
        for process in processes:
            process.communicate()
    last = claiming(name)
    assert last.communicate()[0].startswith("True"), "a claim ends with its process"


def test_threads_of_a_core_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for core, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        (tmp_path / str(core)).write_text(siblings + "\n")
    monkeypatch.setattr(own_core, "_SIBLINGS", f"{tmp_path}/{{}}")
    assert own_core._separate_cores_first([0, 1, 2, 3, 4]) == [0, 1, 4, 2, 3]


@pytest.mark.slow
@pytest.mark.checks("relaax/server/rlx_server")
@pytest.mark.parametrize("pin", [True, False])
def test_worker_of_a_server_has_one_core(processes: Processes, tmp_path: Path, pin: bool) -> None:
    config = write_config(tmp_path, {})
    options = "--set", f"relaax-rlx-server.pin_workers={str(pin).lower()}"
    server = processes.start(sys.executable, SERVER, "--config", config, *options, fresh=True)
    with Line(server.wait_for_address()) as line:
        line.open()
        (worker,) = wait_until(lambda: psutil.Process(server.pid).children(), "the worker")
        every = sorted(os.sched_getaffinity(0))
        allowed = worker.cpu_affinity()
        # Other servers on this machine may have claimed all cores.
        assert allowed == every or (pin and len(allowed) == 1)
        if not pin:
            assert allowed == every
