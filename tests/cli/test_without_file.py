"""`relaax run` without a file: the environment that a name or path selects, its settings, and refusals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from relaax.bundled import BundledConfiguration, bundled_configurations, bundled_names
from relaax.cli.app import app
from relaax.cli.run.environment_check import check_spaces
from relaax.cli.run.plan import make_plan
from relaax.cli.run.without_file import NamedEnvironment, named_environment, plan_without_file, write_file
from relaax.configuration import ConfigurationError
from relaax.rlx import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from support.processes import Processes
from support.run import PATIENCE, SMALL, Run
from support.service import RELAAX

VECTOR = Box(-1, 1, (3,))
IMAGE = Box(0, 255, (32, 32, 3), "uint8")
OWN_ALGORITHM = """
from relaax.algorithm_base import AgentBase, ConfigBase, ParameterServerBase
class Config(ConfigBase):
    depth: int = 1
class Agent(AgentBase): pass
class ParameterServer(ParameterServerBase): pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with programs: world/main.py and alone.py."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "world").mkdir()
    (tmp_path / "world" / "main.py").write_text("")
    (tmp_path / "alone.py").write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CartPole-v1", ("OpenAI_Gym", "CartPole-v1")),
        ("CartPole-v1 --vectorization sync", ("OpenAI_Gym", "CartPole-v1", ["--vectorization", "sync"])),
        ("room:Room-v0", ("OpenAI_Gym", "room:Room-v0")),
        ("MinAtar/Asterix-v1", ("OpenAI_Gym", "MinAtar/Asterix-v1")),
        ("OpenAI_Gym/Acrobot-v1", ("OpenAI_Gym", "Acrobot-v1")),
        ("ALE/Pong-v5", ("ALE", "ALE/Pong-v5")),
        ("PongNoFrameskip-v4", ("ALE", "PongNoFrameskip-v4")),
        ("Pong-v4", ("ALE", "Pong-v4")),
        ("MountainCar-v0", ("OpenAI_Gym", "MountainCar-v0")),
        ("ALE pong --sticky 0.1", ("ALE", "pong", ["--sticky", "0.1"])),
        ("ViZDoom/my_way_home", ("ViZDoom", "my_way_home")),
        ("VizdoomBasic-v1", ("ViZDoom", "VizdoomBasic-v1")),
        ("miniwob/click-test-v1", ("MiniWoB", "miniwob/click-test-v1")),
        ("MiniWorld-Maze-v0", ("MiniWorld", "MiniWorld-Maze-v0")),
        ("classic/tictactoe_v3", ("PettingZoo", "classic/tictactoe_v3")),
        ("pettingzoo:classic/tictactoe_v3", ("PettingZoo", "classic/tictactoe_v3")),
        ("pettingzoo:my_game:MyGame", ("PettingZoo", "my_game:MyGame")),
        ("PettingZoo/tictactoe", ("PettingZoo", "tictactoe")),
        ("PettingZoo rps --opponents random", ("PettingZoo", "rps", ["--opponents", "random"])),
        ("world", ("world", "world")),
        ("world/main.py", ("world/main.py", "world")),
        ("world hard --rate 10", ("world", "hard", ["--rate", "10"])),
        ("alone.py", ("alone.py", "alone")),
    ],
)
@pytest.mark.usefixtures("here")
def test_environment_text_selects_program_and_arguments(text: str, expected: tuple[Any, ...]) -> None:
    program, name, arguments = (*expected, [])[:3]
    assert named_environment(text) == NamedEnvironment(program, name, arguments)


@pytest.mark.parametrize("configuration", list(bundled_configurations()), ids=lambda one: one.name)
def test_bundled_configurations_are_listed_with_their_tasks(configuration: BundledConfiguration) -> None:
    plan = make_plan(configuration.name, [])
    assert (configuration.algorithm, configuration.environment) == (plan.algorithm.name, plan.run.environment)
    assert configuration.task == plan.run.name


def test_all_settings_of_the_same_task_are_used(here: Path) -> None:
    plan, remark = plan_without_file("da3c", "CartPole-v1", ["algorithm.entropy_beta=0.5"])
    assert remark == "settings of da3c_gym_cartpole"
    assert (plan.name, plan.target_return, plan.configuration.folder) == ("da3c_CartPole-v1", 475, here)
    section, bundled = dict(plan.configuration.algorithm), make_plan("da3c_gym_cartpole", []).configuration.algorithm
    assert section == {**bundled, "path": "da3c", "entropy_beta": 0.5}


@pytest.mark.parametrize(
    "algorithm", [name for name in bundled_names("algorithms") if name not in ("da3c_cont", "sac", "apex_dpg")]
)
@pytest.mark.usefixtures("here")
def test_atari_game_gets_settings_for_atari(algorithm: str) -> None:
    task = {"ppo": "_breakout", "apex": ""}.get(algorithm, "_pong")
    arguments = ["--life-loss"] if algorithm in ("ppo", "apex") else []
    plan, remark = plan_without_file(algorithm, "ALE/Seaquest-v5", [])
    assert remark == f"settings of {algorithm}_ale{task}, without the settings of its own task"
    assert plan.configuration.algorithm["reward_clipping"] == 1
    assert "subtract_mean_image" not in plan.configuration.algorithm
    assert (plan.name, plan.run.arguments) == (f"{algorithm}_ALE_Seaquest-v5", ["--threads", "1", *arguments])
    assert (plan.target_return, plan.run.target_evaluation) == (None, None)


@pytest.mark.parametrize("algorithm", bundled_names("algorithms"))
@pytest.mark.usefixtures("here")
def test_other_task_gets_no_network_and_no_target(algorithm: str) -> None:
    plan, _ = plan_without_file(algorithm, "world", [])
    assert plan.name == f"{algorithm}_world"
    assert "network" not in plan.configuration.algorithm
    assert (plan.target_return, plan.run.target_evaluation, plan.run.eval_every) == (None, None, None)
    assert plan.environment_main == Path("world/main.py").resolve()


@pytest.mark.parametrize(("algorithm", "steps"), [("sac", 20_000), ("apex", 20_000), ("da3c", None)])
@pytest.mark.usefixtures("here")
def test_other_task_is_evaluated_seldom(algorithm: str, steps: int | None) -> None:
    plan, _ = plan_without_file(algorithm, "room:Env-v0", [])
    assert plan.run.eval_every == steps


def test_own_algorithm_gets_its_defaults(here: Path) -> None:
    (here / "mine.py").write_text(OWN_ALGORITHM)
    plan, remark = plan_without_file("mine.py", "CartPole-v1", [])
    assert (plan.name, remark) == ("mine_CartPole-v1", "settings: defaults of the algorithm")
    assert plan.target_return is None


def test_written_configuration_makes_the_same_plan_in_any_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine.py").write_text(OWN_ALGORITHM)
    plan, _ = plan_without_file("mine.py", "alone.py x --option 3", ["algorithm.depth=4", "run.clients=2"])
    file = write_file(plan, here / "runs" / "mine_x")
    monkeypatch.chdir("/")
    again = make_plan(str(file), [], here=False)
    for name in ("name", "algorithm", "environment_main", "environment_name", "seed", "title", "task"):
        assert getattr(again, name) == getattr(plan, name)
    assert again.run.model_dump(exclude={"path"}) == plan.run.model_dump(exclude={"path"})
    assert again.configuration.algorithm["depth"] == 4
    assert "drain" not in again.configuration.rlx_server.model_fields_set, "it would override a default of Ray"


def test_run_on_ray_needs_no_file(here: Path, processes: Processes) -> None:
    words = ("run", "--algorithm", "da3c", "--environment", "alone.py", "--on", "ray")
    running = processes.start(*RELAAX, *words, cwd=here, env={**os.environ, "RAY_ADDRESS": "127.0.0.1:1"})
    assert running.wait(PATIENCE) == 2, running.report()
    assert "no target: `relaax cluster stop da3c_alone` saves and ends the run" in running.report()
    assert "no Ray cluster at 127.0.0.1:1" in running.report()
    assert (here / "runs/da3c_alone/da3c_alone.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name a configuration, such as da3c_gym_cartpole, or an algorithm and an environment"),
        (["--algorithm", "da3c"], "--algorithm da3c needs --environment"),
        (["--environment", "X-v0"], "--environment X-v0 needs --algorithm"),
        (["da3c_gym_cartpole", "--algorithm", "da3c"], "da3c_gym_cartpole already names an algorithm"),
        (["da3c_gym_cartpole", "--environment", "X-v0"], "da3c_gym_cartpole already names an environment"),
        (
            ["--algorithm", "da3cc", "--environment", "X-v0"],
            "did you mean 'da3c'? bundled algorithms: da3c, da3c_cont, ",
        ),
        (["--algorithm", "da3c", "--environment", "x.py"], "environment 'x.py': there is no file x.py"),
        (["--algorithm", "da3c", "--environment", "nodee x.js"], "there is no program 'nodee'"),
        (["--algorithm", "da3c", "--environment", "sh x.js"], "only programs in Python can be started: start yours"),
        (["--algorithm", "da3c", "--environment", "ALE"], "name one of its environments, as in ALE/NAME"),
        (["--algorithm", "da3c", "--environment", "'"], "No closing quotation"),
        (["--algorithm", "da3c", "--environment", " "], "a name is missing"),
        (["--algorithm", "da3c", "--environment", "X-v0", "--set", "parameter-server.bind=a:1"], "has no effect"),
        (["gorila_gym_pong"], "did you mean 'gorila_ale_pong'?"),
        (["da3c_pong"], "similar names: da3c_ale_pong, da3c_lstm_pong"),
        (["lunar_lander"], "similar names: apex_gym_lunarlander, da3c_gym_lunarlander, "),
        (["BipedalWalker-v3"], "--environment BipedalWalker-v3; did you mean 'da3cc_gym_walker'?"),
        (["Hopper-v5"], "--environment Hopper-v5; similar names: apex_dpg_gym_hopper, da3cc_gym_hopper, "),
        (["room:RoomEnv"], "relaax run --algorithm da3c --environment room:RoomEnv"),
        (["xyzzy"], "`relaax list configurations` shows"),
    ],
)
@pytest.mark.usefixtures("here")
def test_missing_or_unknown_name_is_refused(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["run", *words])
    assert done.exit_code == 2
    assert sentence in done.output
    assert not Path("runs").exists()


@pytest.mark.usefixtures("here")
def test_environment_that_does_not_fit_is_refused_before_start() -> None:
    done = CliRunner().invoke(app, ["run", "--algorithm", "async_q", "--environment", "Pendulum-v1"])
    assert done.exit_code == 2, done.output
    assert "async_q cannot handle the action space Box(float32, [1], -2..2)" in done.output
    assert done.output.rstrip().endswith("bundled algorithms that can: apex_dpg, da3c, da3c_cont, ppo, sac")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "actions", [MultiDiscrete([2, 3]), MultiBinary([4]), Box(-1, 1, (2,)), Tuple([Discrete(2), Box(0, 1, (1,))])]
)
def test_suitable_algorithms_are_named(actions: Space) -> None:
    names = "apex_dpg, da3c, da3c_cont, ppo, sac" if isinstance(actions, Box) else "da3c, da3c_cont, ppo"
    with pytest.raises(ConfigurationError, match=f"bundled algorithms that can: {names}$"):
        check_spaces(make_plan("async_q_gym_cartpole", []), (VECTOR, actions))


def test_spaces_without_a_suitable_algorithm_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Box\(int64, \[1\], 0..3\): it handles one Discrete; [^;]*$"):
        check_spaces(make_plan("async_q_gym_cartpole", []), (VECTOR, Box(0, 3, (1,), "int64")))


def test_refusal_of_a_key_names_no_other_algorithm() -> None:
    plan = make_plan("da3c_gym_cartpole", ["algorithm.entropy_weights={mov: 0.5}"])
    with pytest.raises(ConfigurationError, match="unknown part of the actions 'mov'; did you mean 'move'[?]$"):
        check_spaces(plan, (VECTOR, Dict({"move": Box(-1, 1, (2,)), "shoot": Discrete(2)})))


@pytest.mark.parametrize("observations", [Dict({"left": IMAGE, "right": IMAGE}), Tuple([IMAGE, IMAGE])])
def test_composed_observations_that_do_not_fit_are_refused(observations: Space) -> None:
    with pytest.raises(ConfigurationError, match="da3c cannot handle the observation space .*: 2 of its parts are"):
        check_spaces(make_plan("da3c_gym_cartpole", []), (observations, Discrete(3)))


def test_unknown_spaces_are_not_checked_before_the_start() -> None:
    check_spaces(make_plan("da3cc_gym_pendulum", []), None)


TWO_IMAGES = """
import gymnasium
from gymnasium.spaces import Box, Dict, Discrete


class Eyes(gymnasium.Env):
    observation_space = Dict({side: Box(0, 255, (32, 32, 3), "uint8") for side in ("left", "right")})
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}
"""


def test_two_images_are_refused_before_a_start(here: Path) -> None:
    (here / "eyes.py").write_text(TWO_IMAGES)
    done = CliRunner().invoke(app, ["run", "--algorithm", "da3c", "--environment", "eyes:Eyes"])
    assert done.exit_code == 2, done.output
    assert "eyes:Eyes: da3c cannot handle the observation space Dict(left: Box(uint8, [32, 32, 3]" in done.output
    assert not Path("runs").exists()


@pytest.mark.slow
def test_run_without_file_names_settings_and_evaluation(processes: Processes, here: Path) -> None:
    words = ("run", "--algorithm", "da3c", "--environment", "CartPole-v1", *SMALL[:-1], "--max-steps", "500")
    directory = here / "runs" / "da3c_CartPole-v1"
    run = Run(lambda: processes.start(*RELAAX, *words, cwd=here), directory)
    assert run.running.wait(PATIENCE) == 3, run.running.report()
    assert run.running.lines[:2] == ["da3c_CartPole-v1: CartPole-v1 by da3c", "settings of da3c_gym_cartpole"]
    assert f"score it: relaax eval {directory}" in run.running.lines


def test_program_in_another_language_is_refused_before_a_start(tmp_path: Path) -> None:
    program = tmp_path / "game.js"
    program.touch()
    with pytest.raises(ConfigurationError, match="only programs in Python can be started"):
        named_environment(str(program))
