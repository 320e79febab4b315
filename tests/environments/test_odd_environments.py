"""The gymnasium program with environments that reuse arrays, exit, fail to close or start processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from relaax import rlx
from support.processes import wait_until
from support.programs import PATIENCE, program, running
from support.rlx_peer import PeerConnection, RlxPeer

pytestmark = pytest.mark.checks("environments", "relaax/client")

GYM = "OpenAI_Gym"
ODD = """
import multiprocessing, os, signal, subprocess, sys, warnings
import gymnasium
import numpy as np

warnings.simplefilter("default")  # gymnasium warns of an error in another process

class Plain(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (2,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, **options):
        self.array = np.zeros(2, np.int64)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.array[:] = 0
        return self.array, {}
    def step(self, action):
        self.array[:] += 1
        return self.array, 1.0, False, bool(self.array[0] == 3), {"winner": [None, 1][self.array[0] % 2]}

class Quits(Plain):
    def step(self, action):
        if self.array[0] == 2:
            sys.exit()
        return super().step(action)

class QuitsAtOnce(Plain):
    def __init__(self):
        sys.exit()

class WindowClose(Plain):
    window = None
    def close(self):
        self.window.close()

class Wide(Plain):
    def reset(self, **options):
        super().reset(**options)
        return self.array + 300, {}

class NoReward(Plain):
    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, None, *rest

class Simulator(Plain):
    fails = False
    def __init__(self, **options):
        super().__init__()
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        self.simulator = subprocess.Popen(sleep, start_new_session=True)
        print("simulator", self.simulator.pid, flush=True)
    def step(self, action):
        if self.fails and self.array[0] == 2:
            raise RuntimeError("out of fuel")
        return super().step(action)
    def close(self):
        self.simulator.terminate()
        self.simulator.wait()

class Signalled(Plain):
    def close(self):
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGTERM)
            print("closed", flush=True)

class StartMethod(Plain):
    def __init__(self, **options):
        super().__init__()
        if multiprocessing.parent_process() is not None:
            print("started as", type(multiprocessing.current_process()).__name__, flush=True)

class Fails(Simulator):
    fails = True

for made in [value for value in vars().values() if isinstance(value, type)]:
    gymnasium.register(id=f"{made.__name__}-v0", entry_point=made, disable_env_checker=True)
"""
ASYNC = ("--vectorization", "async")


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    (tmp_path / "odd.py").write_text(ODD, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_reused_arrays_of_another_dtype_are_sent_unchanged(odd: Path, mode: str) -> None:
    with RlxPeer() as peer:
        command = (peer.address, "odd:Plain-v0", "2", "--path", str(odd), "--vectorization", mode, "--steps", "18")
        done = program(GYM, *command)
        steps = [step for step in peer.connections[0].of(rlx.Step) if step.truncated is not None]
    assert done.returncode == 0, done.stderr
    assert len(steps) == 3
    for step in steps:
        assert step.final_observation[0].tolist() == [[3, 3], [3, 3]]
        assert step.observation[0].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("name", "vectorization"),
    [
        ("Quits", "sync"),
        ("Quits", "async"),
        pytest.param("QuitsAtOnce", "sync", marks=pytest.mark.slow),
        ("QuitsAtOnce", "async"),
    ],
)
def test_environment_that_calls_exit_gives_code_4(odd: Path, name: str, vectorization: str) -> None:
    done = program(
        GYM, "random", f"odd:{name}-v0", "2", "--path", str(odd), "--steps", "99", "--vectorization", vectorization
    )
    assert done.returncode == 4, done.stderr
    sentence = done.stderr.strip().rpartition("\n")[2]
    assert sentence.startswith(f"{GYM}/main: ")
    assert "sys.exit()" in sentence


def test_failing_close_is_logged_and_ignored(odd: Path) -> None:
    done = program(GYM, "random", "odd:WindowClose-v0", "2", "--path", str(odd), "--steps", "9")
    assert done.returncode == 0, done.stderr
    assert "close() failed: AttributeError: 'NoneType' object has no attribute 'close'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.checks("relaax/client", "environments/OpenAI_Gym")
def test_check_reports_simulator_left_running_by_close(odd: Path) -> None:
    text = ODD.replace("self.simulator.terminate()", "raise OSError('no such window')")
    text = text.replace("start_new_session=True", "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL")
    (odd / "odd.py").write_text(text, encoding="utf-8")
    done = program(GYM, "check", "odd:Simulator-v0", "--path", str(odd), "--report", str(odd / "report.json"))
    pid = int(done.stdout.split()[1])
    try:
        assert done.returncode == 1, done.stderr
        found = json.loads((odd / "report.json").read_text("utf-8"))["findings"]
        texts = [finding["text"] for finding in found if finding["level"] == "error"]
        assert "close() raised OSError: no such window (odd.py, line " in texts[0]
        assert texts[1].startswith(f"close() left process {pid} (")
    finally:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "Wide",
            "the observation of environment Wide-v0 is not in its space: observation holds 300, which is outside",
        ),
        ("NoReward", "environment NoReward-v0: the reward is None: it must be one finite number"),
    ],
)
def test_probe_refuses_invalid_first_step(odd: Path, name: str, sentence: str) -> None:
    done = program(GYM, "probe", f"odd:{name}-v0", "--path", str(odd))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"{GYM}/main: {sentence}")
    assert len(done.stderr.splitlines()) == 1


def test_value_beyond_dtype_is_refused_with_async(odd: Path) -> None:
    done = program(GYM, "random", "odd:Wide-v0", "2", "--path", str(odd), *ASYNC, "--steps", "9")
    assert done.returncode == 1
    assert (
        "is not in its space: observation holds 300, which is outside the range of uint8"
        in done.stderr.splitlines()[-1]
    )


def test_second_sigterm_does_not_interrupt_closing(odd: Path) -> None:
    """A service manager signals the whole process group, and each child receives another signal from its parent."""
    done = program(GYM, "random", "odd:Signalled-v0", "2", "--path", str(odd), *ASYNC, "--steps", "9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("closed") == 2


# Fast combinations; the others are slow.
FAST = {
    *(("SIGTERM", "sync", 1), ("SIGTERM", "async", 2), ("SIGINT", "sync", 2), ("SIGINT", "async", 1)),
    *(("error", "sync", 2), ("error", "async", 1), ("steps", "sync", 2), ("steps", "async", 1)),
}
COMBINATIONS = itertools.product(("SIGTERM", "SIGINT", "error", "steps"), ("sync", "async"), (1, 2))


@pytest.mark.slow
@pytest.mark.checks("relaax/client", "environments/OpenAI_Gym")
@pytest.mark.parametrize(
    ("end", "mode", "connections"),
    [pytest.param(*combination, marks=() if combination in FAST else pytest.mark.slow) for combination in COMBINATIONS],
)
def test_simulators_end_with_their_environments(odd: Path, mode: str, end: str, connections: int) -> None:
    started = threading.Semaphore(0)

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.answer()
        started.release()
        while True:
            conn.answer()

    name = "Fails" if end == "error" else "Simulator"
    limit = ("--steps", "40") if end == "steps" else ()
    with RlxPeer(script) as peer:
        command = (peer.address, f"odd:{name}-v0", "2", "--path", str(odd), "--vectorization", mode, *limit)
        with running(GYM, *command, "--connections", str(connections)) as process:
            for _ in range(connections):
                assert started.acquire(timeout=PATIENCE)
            if end == "SIGINT":
                os.killpg(process.pid, signal.SIGINT)
            elif end == "SIGTERM":
                process.send_signal(signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == {"SIGTERM": 0, "SIGINT": 130, "error": 1, "steps": 0}[end], stderr
    pids = [int(line.split()[1]) for line in stdout.splitlines() if line.startswith("simulator ")]
    assert len(pids) >= 2
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "every simulator has ended", PATIENCE)
    assert "leaked" not in stderr
    assert end == "error" or "Traceback" not in stderr


@pytest.mark.slow
@pytest.mark.checks("relaax/client", "environments/OpenAI_Gym")
def test_processes_of_parallel_connections_are_spawned(odd: Path) -> None:
    """A forked process would wait forever for a lock that another thread held, such as an import lock."""
    connections = ("--connections", "2")
    done = program(GYM, "random", "odd:StartMethod-v0", "2", "--path", str(odd), *ASYNC, "--steps", "3", *connections)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("started as SpawnProcess") == done.stdout.count("started as") == 4
