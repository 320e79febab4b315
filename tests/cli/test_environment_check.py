"""`EnvironmentCheck` finds faults of an environment before a run starts. The programs are real."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

from relaax.cli.app import app
from relaax.cli.run.environment_check import EnvironmentCheck
from relaax.cli.run.plan import Plan, make_plan
from relaax.configuration import ConfigurationError
from relaax.rlx import Box, Discrete
from relaax.supervision.process import StartError
from support.processes import wait_until
from support.run import PATIENCE, is_alive

CARTPOLE = "da3c_gym_cartpole"


def plan_of_own_program(folder: Path) -> Plan:
    (folder / "mine.py").write_text("")
    (folder / "mine.yaml").write_text("relaax-run: {environment: mine.py, name: small}\nalgorithm: {path: da3c}\n")
    return make_plan(str(folder / "mine.yaml"), [])


def test_check_returns_the_spaces_of_the_environment() -> None:
    with EnvironmentCheck(make_plan(CARTPOLE, ["run.clients=3"])) as check:
        observations, actions = check.wait(PATIENCE) or (None, None)
    assert isinstance(observations, Box)
    assert (observations.shape, observations.dtype, actions) == ((4,), np.float32, Discrete(2))


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["run.name=CartPoel-v1"], "OpenAI_Gym/main: gymnasium has no environment 'CartPoel-v1'; the nearest is"),
        (["run.arguments=[--sticky, '0.5']"], "OpenAI_Gym/main: --sticky is for Atari games, which CartPole-v1 is not"),
        (
            ["run.arguments=[--vectorisation, sync]"],
            "OpenAI_Gym/main: error: unrecognized arguments: --vectorisation sync; did you mean --vectorization?",
        ),
        (["run.environment=ALE", "run.name=boxin"], "ALE/main: the Arcade Learning Environment has no game 'boxin'"),
    ],
)  # fmt: skip
def test_refusal_of_the_program_is_one_sentence(overrides: list[str], sentence: str) -> None:
    with EnvironmentCheck(make_plan(CARTPOLE, overrides)) as check, pytest.raises(ConfigurationError) as refused:
        check.wait(PATIENCE)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_failed_program_is_reported_with_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program fails because a library is broken."""
    (tmp_path / "gymnasium.py").write_text("raise RuntimeError('half installed')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with (
        EnvironmentCheck(make_plan(CARTPOLE, [])) as check,
        pytest.raises(StartError, match="CartPole-v1 could not") as e,
    ):
        check.wait(PATIENCE)
    assert str(e.value).splitlines()[-1].strip() == "RuntimeError: half installed"


def test_check_that_times_out_ends_its_process() -> None:
    before = set(psutil.Process().children())
    with EnvironmentCheck(make_plan(CARTPOLE, [])) as check:
        (process,) = set(psutil.Process().children()) - before
        assert check.wait(0.0) is None
    assert not process.is_running()


ODD = """
import subprocess, sys, time
import gymnasium
import numpy as np

class Odd(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self, fault):
        self.fault = fault
        if fault == "exit":
            sys.exit()
        if fault == "unmade":
            child = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            open(__file__.replace("odd.py", "simulator"), "w").write(str(child.pid))
            time.sleep(600)
        self.simulator = subprocess.Popen(["sleep", "600"], start_new_session=True)
    def reset(self, *, seed=None, options=None):
        if self.fault == "slow":
            open(__file__.replace("odd.py", "simulator"), "w").write(str(self.simulator.pid))
            time.sleep(600)
        return np.zeros(3 if self.fault == "shape" else 2), {}
    def step(self, action):
        if self.fault == "error":
            raise RuntimeError("out of fuel")
        return np.zeros(2), "much" if self.fault == "reward" else 1.0, False, False, {}
    def close(self):
        self.simulator.terminate()
        self.simulator.wait()

gymnasium.register(id="Odd-v0", entry_point=Odd, disable_env_checker=True)
"""


def odd_plan(folder: Path, fault: str) -> Plan:
    (folder / "odd.py").write_text(ODD)
    (folder / "odd.yaml").write_text(
        "relaax-run: {environment: OpenAI_Gym, name: 'odd:Odd-v0'}\nalgorithm: {path: da3c}\n"
    )
    return make_plan(str(folder / "odd.yaml"), [f"run.kwargs.fault={fault}"])


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        ("shape", ConfigurationError, "is not in its space: observation has shape (3,), the space is (2,)"),
        ("reward", ConfigurationError, "the reward is 'much': it must be one finite number"),
        ("error", StartError, "could not be made, reset and stepped; its program exited with code 1"),
        ("exit", StartError, "ended its program before training: OpenAI_Gym/main: the environment called sys.exit()"),
    ],
)
def test_fault_is_found_in_one_step(tmp_path: Path, fault: str, kind: type[Exception], sentence: str) -> None:
    with EnvironmentCheck(odd_plan(tmp_path, fault)) as check, pytest.raises(kind) as raised:
        check.wait(PATIENCE)
    assert sentence in str(raised.value)


def test_failed_environment_names_the_check_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = odd_plan(tmp_path, "error")
    assert plan.check_arguments == ["odd:Odd-v0", "--", "--kwarg", 'fault="error"', "--path", str(tmp_path)]
    monkeypatch.chdir(tmp_path)
    with EnvironmentCheck(plan) as check, pytest.raises(StartError) as raised:
        check.wait(PATIENCE)
    command = str(raised.value).split("`")[1]
    assert shlex.split(command) == ["relaax", "check", "odd:Odd-v0", "--", "--kwarg", 'fault="error"']
    result = CliRunner().invoke(app, shlex.split(command)[1:], prog_name="relaax")
    assert result.exit_code == 1
    assert "error: episode 1, step 1: step() raised RuntimeError: out of fuel (odd.py, line" in result.stdout


@pytest.mark.parametrize("fault", ["slow", "unmade"])
def test_check_that_times_out_ends_its_simulators(tmp_path: Path, fault: str) -> None:
    started = tmp_path / "simulator"
    with EnvironmentCheck(odd_plan(tmp_path, fault)) as check:
        pid = int(wait_until(lambda: started.exists() and started.read_text(), "a simulator runs", PATIENCE))
        simulator = psutil.Process(pid)
        assert check.wait(0.0) is None
        assert is_alive(simulator)
    try:
        wait_until(lambda: not is_alive(simulator), "the simulator has ended")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            simulator.kill()


def test_own_program_is_never_started(tmp_path: Path) -> None:
    """It may not support the check, and its simulator may not allow a second start."""
    before = psutil.Process().children()
    with EnvironmentCheck(plan_of_own_program(tmp_path)) as check:
        assert not check.is_possible
        assert psutil.Process().children() == before
        assert check.wait(0.0) is None
