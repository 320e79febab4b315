"""The plan that `relaax run` derives from a configuration."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from relaax.bundled import bundled_folder, bundled_names
from relaax.cli.run.plan import make_plan
from relaax.configuration import ConfigurationError

CARTPOLE = "da3c_gym_cartpole"


@pytest.mark.parametrize("name", bundled_names("config", ".yaml"))
def test_every_bundled_configuration_can_be_run(name: str) -> None:
    plan = make_plan(name, [])
    assert plan.name == name
    assert plan.environment_main.is_file()
    assert plan.algorithm.exists()


def test_environment_from_elsewhere_is_part_of_the_run_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert make_plan("da3c_ale_pong", ["run.name=seaquest"]).name == "da3c_ale_pong-seaquest"
    assert make_plan(CARTPOLE, ["run.name=my_game:Pole-v0"]).name == "da3c_gym_cartpole-my_game_Pole-v0"
    (tmp_path / "any.yaml").write_text("relaax-run: {environment: ALE}\nalgorithm: {path: da3c}\n")
    assert make_plan(str(tmp_path / "any.yaml"), ["run.name=pong"]).name == "any-pong"
    monkeypatch.setenv("RELAAX_RUN__NAME", "qbert")
    assert make_plan("da3c_ale_pong", []).name == "da3c_ale_pong-qbert"


def test_client_command_names_environment_and_unique_seed() -> None:
    plan = make_plan(CARTPOLE, ["run.envs_per_client=3", "algorithm.seed=2", "run.arguments=[--steps, '9']"])
    commands = [plan.client_command("localhost:7", index) for index in range(3)]
    main = bundled_folder("environments") / "OpenAI_Gym" / "main.py"
    assert commands[0] == [
        sys.executable, str(main), "localhost:7", "CartPole-v1", "3", "--seed", "2000", "--steps", "9",
    ]  # fmt: skip
    seeds = [int(command[command.index("--seed") + 1]) for command in commands]
    assert seeds == [2000, 2003, 2006], "environment i of a client uses its seed + i"


def test_connections_of_a_client_have_their_own_seeds() -> None:
    plan = make_plan(CARTPOLE, ["run.clients=2", "run.connections_per_client=4", "run.envs_per_client=3"])
    assert plan.environments == 24
    first, second = (plan.client_command("localhost:7", index) for index in range(2))
    assert first[-2:] == ["--connections", "4"]
    assert [int(command[command.index("--seed") + 1]) for command in (first, second)] == [0, 12]


def test_own_file_and_environment_are_planned(tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text("")
    (tmp_path / "mine.yaml").write_text(
        "relaax-run: {environment: maze.py, name: small}\nalgorithm: {path: da3c, max_global_step: 1e3}\n"
    )
    plan = make_plan(str(tmp_path / "mine.yaml"), ["run.max_steps=2000"])
    assert plan.name == "mine"
    assert plan.environment_main == tmp_path / "maze.py"
    assert plan.max_steps == 1000, "max_global_step is a limit too"


def test_gymnasium_keys_reach_the_environment_program(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "relaax-run:\n  environment: OpenAI_Gym\n  name: my_package:My-v0\n"
        "  kwargs: {map_name: 8x8, deep: {a: [1, '2']}}\n"
        "  wrappers: [GrayscaleObservation, ResizeObservation: {shape: [84, 84]}, my.wrappers:Crop: {}]\n"
        "  register: my_package:add\nalgorithm: {path: da3c}\n"
    )
    _, main, *words = make_plan(str(tmp_path / "mine.yaml"), ["run.kwargs.slow=false"]).client_command("random", 0)
    arguments = load_main(Path(main)).parser().parse_args(words)
    assert arguments.kwarg == [("map_name", "8x8"), ("deep", {"a": [1, "2"]}), ("slow", False)]
    resize = ("ResizeObservation", {"shape": [84, 84]})
    assert arguments.wrapper == [("GrayscaleObservation", {}), resize, ("my.wrappers:Crop", {})]
    assert (arguments.name, arguments.register) == ("my_package:My-v0", "my_package:add")
    assert arguments.path == [str(tmp_path)]


def test_pettingzoo_program_gets_arguments_and_folders(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "relaax-run: {environment: PettingZoo, name: 'my_game:MyGame', kwargs: {size: 4}}\nalgorithm: {path: da3c}\n"
    )
    _, main, *words = make_plan(str(file), []).client_command("random", 0)
    arguments = load_main(Path(main)).parser().parse_args(words)
    assert (arguments.name, arguments.kwarg, arguments.path) == ("my_game:MyGame", [("size", 4)], [str(tmp_path)])
    with pytest.raises(ConfigurationError, match="relaax-run.wrappers: is only for gymnasium"):
        make_plan(str(file), ["run.wrappers=[ClipReward]"])


def load_main(path: Path) -> Any:
    return importlib.import_module(f"environments.{path.parent.name}.main")


def test_own_program_gets_only_the_given_arguments(tmp_path: Path) -> None:
    (tmp_path / "maze.py").write_text("")
    (tmp_path / "mine.yaml").write_text("relaax-run: {environment: maze.py, name: a:b}\nalgorithm: {path: da3c}\n")
    mine = str(tmp_path / "mine.yaml")
    assert make_plan(mine, []).client_command("random", 0)[-2:] == ["--seed", "0"]
    assert make_plan(mine, ["run.kwargs.size=4"]).client_command("random", 0)[-2:] == ["--kwarg", "size=4"]


@pytest.mark.parametrize("key", ["kwargs={a: 1}", "wrappers=[ClipReward]", "register=a:b"])
@pytest.mark.parametrize("config", ["da3c_ale_pong", "da3c_vizdoom_my_way_home"])
def test_gymnasium_keys_are_refused_for_other_programs(config: str, key: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is only for gymnasium environments \(OpenAI_Gym\); .* relaax-run\."):
        make_plan(config, [f"run.{key}"])


@pytest.mark.parametrize(
    ("config", "overrides", "expected"),
    [
        ("da3c_gym_cartpol", [], ["'da3c_gym_cartpol'", "'da3c_gym_cartpole'"]),
        (CARTPOLE, ["run.environment=OpenAIGym"], ["'OpenAIGym'", "'OpenAI_Gym'"]),
        (CARTPOLE, ["run.environment=null"], ["relaax-run.environment"]),
        (CARTPOLE, ["run.client=3"], ["'client'", "'clients'"]),
        (CARTPOLE, ["run.clients=0"], ["clients", "0"]),
        (CARTPOLE, ["algorithm.path=da4c"], ["da4c", "da3c"]),
        (CARTPOLE, ["algorithm.max_global_step=.inf"], ["max_global_step", "inf"]),
        (CARTPOLE, ["algorithm.seed=five"], ["seed", "five"]),
        (CARTPOLE, ["nonsense"], ["nonsense", "SECTION.KEY=VALUE"]),
    ],
)
def test_invalid_plan_is_refused_with_the_way_out(config: str, overrides: list[str], expected: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        plan = make_plan(config, overrides)
        _ = (plan.seed, plan.max_steps)
    for words in expected:
        assert words in str(refused.value)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("parameter-server.checkpoint_dir=x", "run directory, which --run-dir names"),
        ("parameter-server.checkpoint_interval=5", "`relaax run` uses relaax-run.checkpoint_interval"),
        ("rlx-server.bind=localhost:1", "chooses the ports itself"),
    ],
)
def test_keys_without_effect_are_refused_on_the_command_line(key: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match="has no effect: ") as refused:
        make_plan("da3c_gym_cartpole", [key])
    assert reason in str(refused.value)
