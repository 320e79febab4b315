"""Each bundled configuration: its addresses, its algorithm, its environment and a short training."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

from relaax import rlx
from relaax.algorithm_base import load_algorithm
from relaax.algorithm_base.config import size_mismatch
from relaax.bundled import bundled_folder, bundled_names
from relaax.cli.run.plan import Plan, make_plan
from relaax.configuration import validate_section
from relaax.configuration.roles import ROLES
from support.machine import require
from support.programs import ROOT, completed
from support.rlx_peer import PeerConnection, RlxPeer
from support.run import Runs

CONFIGURATIONS = bundled_names("config", ".yaml")
TORCS = "da3c_torcs"
ALWAYS = (
    *("da3c_ale_boxing", "da3c_lstm_cartpole", "da3c_minatar_breakout", "da3cc_gym_pendulum", "n_step_q_gym_cartpole"),
    *("async_q_gym_cartpole", "async_sarsa_ale_pong", "gorila_gym_cartpole", "gorila_distributed_gym_cartpole"),
    *("apex_gym_cartpole", "apex_ale", "da3c_shooter"),
)
"""Configurations that every machine can run: each algorithm, network and family at least once."""
TRAINED = {*ALWAYS, "async_sarsa_gym_cartpole"} - {
    "da3c_minatar_breakout",
    "apex_ale",
    "async_sarsa_ale_pong",
    "da3c_shooter",
}
"""Configurations that the slow tests train most often: each algorithm at least once."""
without_lab = pytest.mark.skipif(
    importlib.util.find_spec("deepmind_lab") is not None, reason="DeepMind Lab is installed"
)


def test_each_configuration_has_a_procfile() -> None:
    assert set(CONFIGURATIONS) >= {
        *("da3c_gym_cartpole", "da3c_gym_acrobot", "da3c_gym_lunarlander"),
        *("da3c_ale_boxing", "da3c_ale_breakout", "da3c_ale_pong", "da3c_lstm_cartpole", "da3c_lstm_pong"),
        *("da3cc_gym_pendulum", "da3cc_gym_walker", "da3cc_gym_hopper"),
        *("async_q_gym_cartpole", "async_sarsa_gym_cartpole", "n_step_q_gym_cartpole", "n_step_q_gym_lunarlander"),
        *("async_q_ale_pong", "async_sarsa_ale_pong", "n_step_q_ale_pong"),
        *("da3c_minatar_breakout", "n_step_q_minatar_breakout"),
        *("da3c_vizdoom_my_way_home", "da3c_miniworld_maze", "da3c_miniwob_click_test", "da3c_torcs", "da3c_shooter"),
        *("gorila_gym_cartpole", "gorila_distributed_gym_cartpole", "gorila_gym_lunarlander", "gorila_ale_pong"),
        *("apex_gym_cartpole", "apex_gym_lunarlander", "apex_gym_mountaincar", "apex_ale", "da3c_ale"),
    }
    for name in CONFIGURATIONS:
        lines = (bundled_folder("config") / f"{name}.Procfile").read_text().splitlines()
        assert lines == [*procfile(name), f"# tensorboard: relaax-tensorboard --config config/{name}.yaml"]


def procfile(name: str) -> list[str]:
    """Return the Procfile lines that start all processes of a configuration except its clients."""
    configuration = make_plan(name, []).configuration
    addresses = {
        "parameter-server": configuration.rlx_server.parameter_server,
        "replay-server": configuration.rlx_server.replay_server,
    }
    lines = []
    for role in ROLES:
        if role.command is None:
            continue
        count = role.count(configuration.sections)
        for number in range(count):
            options = f" --{NUMBERED[role.name]} {number}" if count > 1 else ""
            if count > 1 and role.name in addresses:
                options += f"/{count}" + (f" --bind {addresses[role.name][number]}" if number else "")
            if number and role.led:
                options += f" --first-shard {addresses[role.name][0]}"
            process = f"{role.name}-{number}" if number else role.name
            lines.append(f"{process}: {role.command} --config config/{name}.yaml{options}")
    return lines


NUMBERED = {"parameter-server": "shard", "replay-server": "shard", "learner": "learner"}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_folders_are_named_after_the_configuration(name: str) -> None:
    configuration = make_plan(name, []).configuration
    assert configuration.parameter_server.checkpoint_dir == f"checkpoints/{name}"
    assert configuration.parameter_server.metrics_dir == f"metrics/{name}"
    servers, rlx_server = configuration.parameter_server, configuration.rlx_server
    replay, learner = (configuration.sections[f"relaax-{role}"] for role in ("replay-server", "learner"))
    assert (rlx_server.parameter_server[0], len(rlx_server.parameter_server)) == (servers.bind, servers.shards)
    assert len(rlx_server.replay_server) == replay.shards
    assert rlx_server.replay_server[:1] == [replay.bind][: replay.shards]
    if learner.learners:
        assert learner.parameter_server == rlx_server.parameter_server
        assert learner.replay_server == rlx_server.replay_server


def playable(name: str) -> Any:
    """Return a test parameter, marked slow unless the configuration is in ALWAYS."""
    if name in ALWAYS:
        return name
    family = make_plan(name, []).run.environment
    files = (f"config/{name}.yaml", f"environments/{family}", "relaax/client", "relaax/algorithm_base")
    return pytest.param(name, marks=[pytest.mark.slow, pytest.mark.checks(*files)])


@pytest.mark.timeout(1200)  # one configuration downloads its game
@pytest.mark.parametrize("name", [playable(name) for name in CONFIGURATIONS])
def test_algorithm_accepts_its_configuration_and_environment(name: str) -> None:
    plan = make_plan(name, ["run.envs_per_client=2"] if name in ALWAYS else [])
    algorithm = load_algorithm(plan.configuration.algorithm_path, plan.configuration.folder)
    config = validate_section(algorithm.Config, plan.configuration.algorithm, "algorithm")
    require(plan.run.environment)
    hello = hello_of(plan)
    assert (hello.environment, hello.environments) == (plan.environment_name, plan.run.envs_per_client)
    spaces = hello.observation_space, hello.action_space
    assert algorithm.Agent.refusal(config, *spaces) is None
    assert size_mismatch(config, *spaces) is None


def hello_of(plan: Plan) -> rlx.Hello:
    """Run a client of this plan for one step, and return its hello message."""

    def script(conn: PeerConnection) -> None:
        conn.welcome()
        conn.answer()
        conn.receive()
        conn.send(rlx.TrainingFinished("one step is enough", 1))
        conn.close()

    with RlxPeer(script) as peer:
        python, *rest = plan.client_command(peer.address, 0)
        done = completed([python, "-W", "error", *rest], {**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr
        return peer.connections[0].hello


def trainable(name: str) -> Any:
    """Return a test parameter; a configuration in TRAINED also checks the algorithms and `relaax run`."""
    parts = ("algorithms", "relaax/algorithm_base", "relaax/configuration", "relaax/cli/run") if name in TRAINED else ()
    return pytest.param(name, marks=pytest.mark.checks(f"config/{name}.yaml", *parts))


@without_lab
@pytest.mark.slow
def test_run_without_deepmind_lab_names_the_way_out(runs: Runs) -> None:
    lab = ("run.environment=DeepMind_Lab", "run.name=nav_maze_static_01", "run.arguments=[]")
    overrides = [word for key in lab for word in ("--set", key)]
    run = runs.start("--no-progress", *overrides, config="da3c_miniworld_maze")
    assert run.running.wait(150) == 2, run.running.report()
    assert "this Python has no deepmind_lab" in run.running.stderr
    assert "bazel build" in run.running.stderr
    assert "Traceback" not in run.running.stderr
    run.expect_nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # one configuration downloads its game
@pytest.mark.parametrize("name", [trainable(name) for name in CONFIGURATIONS])
def test_bundled_configuration_trains(runs: Runs, name: str, short: bool) -> None:
    require(make_plan(name, []).run.environment)
    steps = 500 if short else 1500
    if name.startswith(("apex_ale", "apex_dpg", "sac")):
        steps = 1500
    if name.startswith("gorila"):
        steps = 6000  # each worker fills its own replay memory
    elif name.startswith("apex_gym"):
        steps = 3000  # actors may be 500 items ahead before the learner starts
    run = runs.start(
        "--max-steps",
        str(steps),
        "--set",
        "run.target_return=null",
        "--set",
        "run.target_evaluation=null",
        *(("--set", "algorithm.learning_starts=500") if name.startswith(("gorila", "apex", "sac")) else ()),
        "--no-progress",
        config=name,
    )
    assert run.running.wait(280) == 0, run.running.report()
    summary = run.summary
    assert summary["status"] == "max_steps"
    assert summary["updates"] > 0
    assert summary["frames"] == frame_skip(name) * summary["env_steps"]


def frame_skip(name: str) -> int:
    """Return the frames per step: the client's --frame-skip, or the default of its environment."""
    settings = make_plan(name, []).configuration.run
    if "--frame-skip" in settings.arguments:
        return int(settings.arguments[settings.arguments.index("--frame-skip") + 1])
    return {"ALE": 4, "TORCS": 5, "Godot": 6}.get(settings.environment, 1)
