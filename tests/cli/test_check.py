"""`relaax check` finds an environment by id, configuration or program, and lists the algorithms for its spaces."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaax.cli.app import app

# CliRunner captures the output of `check`; the child process writes to the real stderr.
ALL = "algorithms that support them: apex, async_q, async_sarsa, da3c, da3c_cont, gorila, n_step_q, ppo"
WHOLE_NUMBERS = """
import gymnasium

class Whole(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (2,))
    action_space = gymnasium.spaces.Box(0, 3, (1,), int)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.random(2, "float32"), {}
    def step(self, action):
        return self.np_random.random(2, "float32"), 0.0, True, False, {}

gymnasium.register(id="Whole-v0", entry_point=Whole)
"""


def check(*words: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(app, ["check", *words], prog_name="relaax")
    return result.exit_code, (result.stdout or result.stderr).splitlines()


def test_environment_id_is_checked_and_algorithms_are_listed() -> None:
    code, lines = check("CartPole-v1", "--episodes", "2")
    assert code == 0
    assert lines[:-1] == ["observations Box(float32, [4]), actions Discrete(2)", ALL]
    assert lines[-1].startswith("ok: 2 episodes, ")
    assert lines[-1].endswith(" at random; no warnings")


def test_check_fails_if_the_algorithm_refuses_the_spaces() -> None:
    code, (error, _, algorithms, closing) = check("async_q_gym_cartpole", "--set", "run.name=Pendulum-v1")
    assert code == 1
    assert error.startswith(
        "error: async_q cannot handle the action space Box(float32, [1], -2..2): it handles one Disc"
    )
    assert algorithms == "algorithms that support them: apex_dpg, da3c, da3c_cont, ppo, sac"
    assert closing.startswith("failed: 3 episodes, ")


@pytest.mark.parametrize("name", ["whole:Whole-v0", "whole:Whole"])
def test_spaces_without_a_suitable_algorithm_are_an_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "whole.py").write_text(WHOLE_NUMBERS)
    monkeypatch.chdir(tmp_path)
    code, (error, *_, closing) = check(name, "--envs", "2")
    assert code == 1
    assert error.startswith(
        "error: da3c cannot handle the action space Box(int64, [1], 0..3): a Box of int64 is not sup"
    )
    assert closing == "failed: 4 episodes, 4 steps; 1 error"


def test_environment_of_the_template_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "environment", "mine"]).exit_code == 0
    code, lines = check("mine.yaml")
    assert (code, lines[:2]) == (0, ["observations Box(float32, [2], -2..2), actions Discrete(3)", ALL])
    assert lines[-1].endswith("no warnings")


def test_refusal_of_a_program_keeps_its_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert check("ALE", "boxin") == (2, [])
    assert "has no game 'boxin'; the nearest is 'boxing'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("act", "how"),
    [("os.kill(os.getpid(), 11)", "was ended by SIGSEGV"), ("os._exit(7)", "ended with exit code 7")],
)
def test_crash_of_the_environment_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str, how: str
) -> None:
    (tmp_path / "crash.py").write_text(
        "import os\nfrom gymnasium.envs.classic_control import CartPoleEnv\n\n\n"
        f"class Crash(CartPoleEnv):\n    def step(self, action):\n        {act}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert check("crash:Crash") == (1, [f"relaax check: the environment's program {how}, without a report"])


def test_program_with_own_client_ends_with_the_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "mine.py"
    program.write_text(
        "import sys\nfrom relaax.client import Box, Client, Discrete\n"
        "print('starting')\n"
        "Client(sys.argv[1], observation_space=Box(shape=(4,)), action_space=Discrete(2))\n"
    )
    assert check(str(program)) == (1, [])
    *_, last = capfd.readouterr().err.splitlines()
    assert last.startswith("ValueError: address 'check' is only for relaax.client.run and the programs of `relaax new ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("da3c_gym_cartpol",), "there is no configuration 'da3c_gym_cartpol'; did you mean 'da3c_gym_cartpole'?"),
        (("mine.yaml",), "no file mine.yaml was found, and unknown configuration 'mine.yaml'; "),
        (("AIE", "boxing"), "environment 'AIE boxing': there is no program 'AIE'; did you mean 'ALE'?"),
        (("room",), "'room' is a module: write room:CLASS for a gymnasium environment, or room.py for a "),
        (("room.py",), "room.py ended without a report: it is not an environment program"),
        (("room.py", "x"), "room.py ended without a report: it is not an environment program"),
        (("world",), "'world' is not a gymnasium id; did you mean world.yaml?"),
        (("ALE",), "ALE is a family of environments: add a name, as in `relaax check ALE NAME`"),
        (("CartPole-v1", "--set", "run.name=x"), "--set is for configurations: give options of the environment's"),
    ],
)
def test_unknown_environment_is_refused(
    words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("room.py", "world.yaml"):
        (tmp_path / file).write_text("")
    code, lines = check(*words)
    assert (code, len(lines)) == (2, 1)
    assert lines[0].startswith(f"relaax check: {sentence}")
